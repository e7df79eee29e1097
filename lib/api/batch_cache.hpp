// The latest batches of dr_encode: a training loop encodes the same tensors at every step.
#pragma once

#include <memory>
#include <vector>

#include "api/placed_batch.hpp"

namespace dr {

class batch_cache {
 public:
  // The batch of these tensors, prepared unless it is here already. It lives until the next call.
  dr_status find(const batch_request& request, const tensor_list& tensors, const target& t, const placed_batch*& out,
                 dr_error& error);

 private:
  struct entry {
    batch_request request;
    std::vector<std::shared_ptr<const plan>> plans;
    placed_batch placed;

    bool fits(const batch_request& r, const tensor_list& tensors, const target& t) const;
  };
  std::vector<std::unique_ptr<entry>> entries_;  // the latest first
};

}  // namespace dr
