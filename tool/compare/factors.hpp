// Rounds of a transform (transform=lowrank) of one rank: the factors of tensors, which ranks would all-reduce.
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
  // Tensors of f32: a shape [n, a, b] is the matrix [n, a b], one of one dimension is sent as it is. Throws error.
  factors(context& c, const plan& p, std::span<const tensor> tensors, uint64_t seed);

  struct times {
    double begin_ns, rest_ns;  // until the first factor is there; all behind it
  };
  // What arrives of x goes to `out`, one tensor behind the other, which has room for all elements. What is kept for the next
  // round changes.
  times round(std::span<const tensor> x, std::span<float> out);
  // x, with what is kept of earlier rounds added.
  std::vector<tensor> with_residual(std::span<const tensor> x) const;

  std::vector<std::byte> state() const;
  void set_state(std::span<const std::byte> state);
  uint64_t matrices() const { return info_.matrices; }
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
