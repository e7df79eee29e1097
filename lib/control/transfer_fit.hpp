// t = A + B · bytes, fitted to the last agreed times.
#pragma once

#include <vector>

#include "core/error.hpp"

namespace dr {

class transfer_fit {
 public:
  void create(size_t samples) { ring_.resize(samples); }
  void clear() { count_ = next_ = 0; }
  void add(double bytes, double ns);
  // By least squares over what was added and, if there is one, the time of an empty transfer. Neither is below 0. With
  // times of one size only, and no empty transfer, A is 0.
  void solve(double empty_ns, bool has_empty);

  size_t count() const { return count_; }
  double at(double bytes) const { return base_ns + per_byte_ns * bytes; }

  double base_ns = 0, per_byte_ns = 0;

 private:
  struct sample {
    double bytes, ns;
  };
  std::vector<sample> ring_;
  size_t count_ = 0, next_ = 0;
};

}  // namespace dr
