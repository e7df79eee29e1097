#include "control/transfer_fit.hpp"

namespace dr {

void transfer_fit::add(double bytes, double ns) {
  ring_[next_] = {bytes, ns};
  next_ = (next_ + 1) % ring_.size();
  if (count_ < ring_.size()) ++count_;
}

void transfer_fit::solve(double empty_ns, bool has_empty) {
  base_ns = per_byte_ns = 0;
  const double n = static_cast<double>(count_ + has_empty);
  if (count_ == 0) {
    if (has_empty) base_ns = empty_ns;
    return;
  }
  double bytes = 0, ns = has_empty ? empty_ns : 0;
  for (size_t i = 0; i < count_; ++i) bytes += ring_[i].bytes, ns += ring_[i].ns;
  bytes /= n, ns /= n;
  double square = has_empty ? bytes * bytes : 0, product = has_empty ? -bytes * (empty_ns - ns) : 0;
  double own_square = 0, own_product = 0;  // through the origin
  for (size_t i = 0; i < count_; ++i) {
    const double x = ring_[i].bytes - bytes;
    square += x * x;
    product += x * (ring_[i].ns - ns);
    own_square += ring_[i].bytes * ring_[i].bytes;
    own_product += ring_[i].bytes * ring_[i].ns;
  }
  per_byte_ns = square > 0 ? product / square : 0;
  base_ns = ns - per_byte_ns * bytes;
  if (per_byte_ns < 0) {  // noise: time does not depend on bytes here
    per_byte_ns = 0;
    base_ns = ns;
  }
  if ((square <= 0 || base_ns < 0) && own_square > 0) {
    base_ns = 0;
    per_byte_ns = own_product / own_square;
  }
}

}  // namespace dr
