// The weights of gradients and states in feedback. Clipping needs the norm of all gradients of a call before the first
// of them is added (Lin et al. 2017; Pascanu et al. 2013).
#include <algorithm>
#include <cmath>

#include "pipeline/encoding.hpp"
#include "primitive/bits.hpp"

namespace dr {
namespace {

constexpr uint64_t block = 1 << 16;  // values; the sum does not depend on the distribution of blocks to workers

uint64_t present(const tensor_shape& s) { return (s.sparse() ? s.count : s.universe) * s.width; }

}  // namespace

double clip_of(const plan& p) { return p.keeps_feedback() ? p.feedback_rule().clip() : 0; }

uint64_t squares_max(const batch& b) {
  uint64_t n = 0;
  for (const unit& u : b.units)
    for (uint32_t t = u.first_tensor; clip_of(*u.method) > 0 && t < u.first_tensor + u.tensors; ++t)
      n += ceil_div(present(b.shapes[t]), block);
  return n;
}

double measure_norm(const encoding& e, double* squares) {
  double sum = 0;
  for (const unit& u : e.b.units)
    for (uint32_t t = u.first_tensor; clip_of(*u.method) > 0 && t < u.first_tensor + u.tensors; ++t) {
      const tensor_view& v = e.tensors[t];
      struct job {
        const tensor_view* v;
        uint64_t n;
        double* squares;
      } job{&v, (u.sparse || v.index_dtype ? v.count : v.universe) * u.width, squares};
      const auto one = [](void* arg, size_t i, size_t) {
        const auto& j = *static_cast<const struct job*>(arg);
        const uint64_t first = i * block;
        j.squares[i] =
            squares_of(j.v->dtype, static_cast<const std::byte*>(j.v->values) + first * value_size(j.v->dtype),
                       std::min(block, j.n - first));
      };
      const auto blocks = static_cast<size_t>(ceil_div(job.n, block));
      e.workers.run(blocks, one, &job);
      for (size_t i = 0; i < blocks; ++i) sum += squares[i];
    }
  return std::sqrt(sum);
}

feedback_weights weights_of(const encoding& e, const unit& u, uint32_t tensor) {
  const bound_feedback rule = u.method->feedback_rule();
  feedback_step step{.norm = e.w.selected.norm};
  if (rule.kind.rate) step.last_rate = rate_of(e.tensors[tensor].state, e.b.shapes[tensor].elements());
  return rule.weights(step);
}

}  // namespace dr
