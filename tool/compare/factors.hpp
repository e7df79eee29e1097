// Rounds of a transform (transform=lowrank) on one rank. In a training the ranks all-reduce its factors.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deepreduce/deepreduce.hpp"
#include "deepreduce/transform.h"
#include "tool/read/inputs.hpp"

namespace dr::compare {

bool is_transform(const std::string& plan);

class factors {
 public:
  // Tensors of f32: a shape [n, a, b] is the matrix [n, a b]; one dimension is sent unchanged. Throws error.
  factors(context& c, const plan& p, std::span<const tensor> tensors, uint64_t seed);

  struct times {
    double begin_ns, rest_ns;  // up to the first factor; after it
  };
  // Writes the decoded x to `out` [all elements], one tensor after another, and updates the state.
  times round(std::span<const tensor> x, std::span<float> out);
  // x + residual.
  std::vector<tensor> with_residual(std::span<const tensor> x) const;

  std::vector<std::byte> state() const;
  void set_state(std::span<const std::byte> state);
  uint32_t rings() const { return info_.second > 0 ? 2 : 1; }          // one for each factor that there is
  uint64_t bytes() const { return 4 * (info_.first + info_.second); }  // of both factors

 private:
  struct closer {
    void operator()(dr_transform* t) const { dr_transform_destroy(t); }
  };
  void check(dr_status s) const;

  context& library_;
  std::unique_ptr<dr_transform, closer> handle_;
  std::vector<float> in_;  // x, aligned
  bool keeps_;
  dr_transform_info info_ = sized<dr_transform_info>();
};

}  // namespace dr::compare
