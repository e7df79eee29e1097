// Sparse tensors that an .npz holds as several arrays. They become dense tensors:
//   format, shape, data; indices and indptr, or row and col     what scipy.sparse.save_npz writes: CSR, CSC, COO
//   NAME.indices [k, r] or [r], NAME.values [r, …], NAME.shape [n]     coordinates, as torch.sparse has them: the first k
//                             dimensions are sparse, the others of each element are dense; or without the NAME and dot
// Entries need no order, and the values of equal positions are added up, in float64.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "npy.hpp"

namespace dr::compare {

// Which members of an archive belong together.
struct sparse_group {
  std::string name;  // of the tensor as the file has it, "" of scipy's
  bool scipy = false;
  std::map<std::string, size_t> parts;  // "indices": number of the member

  size_t first() const;  // the least of the numbers
};

std::vector<sparse_group> sparse_groups(std::span<const std::string> members);

// An array of the group; `where` names it in errors.
struct sparse_part {
  std::string where;
  npy_array array;
  std::shared_ptr<const void> owner;
};

// Throws input_error for indices out of range, arrays that disagree, formats other than those above, and a dense tensor of
// more than 2^30 elements; not_float for integers that `how` does not cast.
tensor read_sparse(const sparse_group& group, const std::function<sparse_part(size_t)>& read, std::string_view where,
                   const reading& how);

}  // namespace dr::compare
