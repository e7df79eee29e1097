#include "exchange/factor_work.hpp"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "primitive/check.hpp"

namespace dr {
namespace {

uint64_t sum_of(const std::byte* message, uint64_t elements) {
  return check(reinterpret_cast<const uint8_t*>(message) + sizeof(factor_head), 4 * elements);
}

void seal(std::byte* message, uint64_t tag, uint64_t elements) {
  const factor_head head{tag, sum_of(message, elements)};
  std::memcpy(message, &head, sizeof head);
}

}  // namespace

factor_work::~factor_work() {
  if (memory_) c_.release(memory_, memory_size_);
}

dr_status factor_work::create(const plan& method, const exchange_memory& at, uint64_t dense_below) {
  std::vector<lowrank_shape> shapes;
  for (size_t i = 0; i < at.tensors.size(); ++i) {
    const tensor_view& t = at.tensors[i];
    if (t.dtype != DR_F32 || t.index_dtype || at.outs[i].dtype != DR_F32 || at.outs[i].index_dtype) {
      fail(c_.error, DR_E_UNSUPPORTED, "tensor %zu: lowrank requires dense f32 tensors and outputs", i);
      c_.error.tensor = i;
      return DR_E_UNSUPPORTED;
    }
    shapes.push_back({t.universe, std::max(1u, t.width)});
  }
  lowrank_options how{.rank = method.transform.rank, .keeps = method.keeps_feedback(), .dense_below = dense_below};
  if (how.keeps) {
    const feedback_weights weights = method.feedback_rule().weights();
    how.beta = weights.beta;
    how.gamma = weights.gamma;
  }
  if (const dr_status s = state_.create(how, shapes, c_.workers->workers(), c_.error)) return s;
  gradients_.resize(shapes.size());
  outs_.resize(shapes.size());
  memory_size_ = std::max<uint64_t>(1, state_.memory_size());
  memory_ = c_.allocate(memory_size_);
  if (!memory_)
    return fail(c_.error, DR_E_MEMORY, "exchange: cannot allocate %" PRIu64 " bytes for factors", memory_size_);
  state_.place(static_cast<std::byte*>(memory_));
  return DR_OK;
}

dr_status factor_work::reach(uint32_t phase, bool idle, const exchange_memory& at) {
  if (!begun_) {
    begun_ = true;
    for (size_t i = 0; i < gradients_.size(); ++i) {
      gradients_[i] = static_cast<const float*>(at.tensors[i].values);
      outs_[i] = static_cast<float*>(at.outs[i].values);
      const auto bits = reinterpret_cast<uintptr_t>(gradients_[i]) | reinterpret_cast<uintptr_t>(outs_[i]);
      if (!state_.items()[i].elements() || (gradients_[i] && outs_[i] && bits % sizeof(float) == 0)) continue;
      fail(c_.error, DR_E_ARGUMENT, "tensor %zu: values or output %s", i,
           gradients_[i] && outs_[i] ? "are not aligned to f32" : "is NULL");
      c_.error.tensor = i;
      return DR_E_ARGUMENT;
    }
    return state_.begin(gradients_, outs_, *c_.workers, c_.error);
  }
  if (idle || phase == 0 || state_.phase() != 1) return DR_OK;
  const dr_status s = state_.advance(mean(), 1, *c_.workers, c_.error);
  return s == DR_PENDING ? DR_OK : s;
}

void factor_work::write(uint32_t range, uint64_t tag, std::byte* message) const {
  std::memcpy(message + sizeof(factor_head), state_.factor().data() + first(range), 4 * elements(range));
  seal(message, tag, elements(range));
}

dr_status factor_work::check(uint32_t range, frame_kind kind, uint64_t tag, const dr_bytes& message,
                             dr_error& error) const {
  if (message.size != room(range))
    return fail(error, DR_E_CORRUPT, "factor: %zu bytes, %" PRIu64 " expected", message.size, room(range));
  const auto* const bytes = static_cast<const std::byte*>(message.data);
  factor_head head;
  std::memcpy(&head, bytes, sizeof head);
  if (head.check != sum_of(bytes, elements(range)))
    return fail(error, DR_E_CORRUPT, "factor: the check does not fit its bytes");
  if (head.tag != tag) return fail(error, DR_E_ARGUMENT, "factor: its tag is of another step or exchange");
  if (kind != frame_kind::part) return DR_OK;
  const std::span values(reinterpret_cast<const float*>(bytes + sizeof head), elements(range));
  const auto bad = std::ranges::find_if_not(values, [](float x) { return std::isfinite(x); });
  if (bad == values.end()) return DR_OK;
  return fail(error, DR_E_CORRUPT, "factor: element %" PRIu64 " is %g", first(range) + (bad - values.begin()),
              static_cast<double>(*bad));
}

void factor_work::sum(uint32_t range, uint64_t tag, std::span<const dr_bytes> messages, std::byte* to) const {
  const auto values = [](const void* message) {
    return reinterpret_cast<const float*>(static_cast<const std::byte*>(message) + sizeof(factor_head));
  };
  const uint64_t n = elements(range);
  auto* const sums = reinterpret_cast<float*>(to + sizeof(factor_head));
  std::copy_n(values(messages[0].data), n, sums);
  for (const dr_bytes& m : messages.subspan(1)) {
    const float* const from = values(m.data);
    for (uint64_t i = 0; i < n; ++i) sums[i] += from[i];
  }
  seal(to, tag, n);
}

void factor_work::store_sum(uint32_t range, const std::byte* message) {
  if (!elements(range)) return;
  std::memcpy(state_.factor().data() + first(range), message + sizeof(factor_head), 4 * elements(range));
}

dr_status factor_work::finish(bool sums) {
  return state_.advance(mean(), sums ? static_cast<float>(ranks_) : 1, *c_.workers, c_.error);
}

}  // namespace dr
