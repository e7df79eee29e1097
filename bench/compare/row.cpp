#include "row.hpp"

#include <cmath>

namespace dr::compare {
namespace {

nlohmann::ordered_json cell(double number) {
  return std::isfinite(number) ? nlohmann::ordered_json(number) : nlohmann::ordered_json(nullptr);
}
nlohmann::ordered_json cell(const std::optional<uint64_t>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
}
nlohmann::ordered_json cell(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}
nlohmann::ordered_json nanoseconds(double time) { return static_cast<uint64_t>(std::llround(time)); }

}  // namespace

nlohmann::ordered_json to_json(const row& r) {
  return {{"input", r.input},
          {"tensor", r.tensor},
          {"kind", cell(r.kind)},
          {"step", r.step},
          {"dtype", r.dtype},
          {"d", r.d},
          {"r", cell(r.r)},
          {"support", cell(r.support)},
          {"plan", r.plan},
          {"fallback", cell(r.fallback)},
          {"bytes", r.bytes},
          {"index_bytes", cell(r.index_bytes)},
          {"value_bytes", cell(r.value_bytes)},
          {"order_bytes", cell(r.order_bytes)},
          {"header_bytes", cell(r.header_bytes)},
          {"relative_volume", cell(r.relative_volume)},
          {"index_bits_per_nonzero", cell(r.index_bits_per_nonzero)},
          {"value_bits_per_nonzero", cell(r.value_bits_per_nonzero)},
          {"index_bound_bits_per_nonzero", cell(r.index_bound_bits_per_nonzero)},
          {"sparsify_ns", nanoseconds(r.sparsify_ns)},
          {"encode_ns", nanoseconds(r.encode_ns)},
          {"decode_ns", nanoseconds(r.decode_ns)},
          {"encode_ns_spread", cell(r.encode_ns_spread)},
          {"decode_ns_spread", cell(r.decode_ns_spread)},
          {"index_recall", cell(r.index_recall)},
          {"relative_l2_error", cell(r.relative_l2_error)},
          {"max_relative_error", cell(r.max_relative_error)},
          {"cosine_similarity", cell(r.cosine_similarity)},
          {"contraction", cell(r.contraction)},
          {"total_error", cell(r.total_error)},
          {"gradient_energy", cell(r.gradient_energy)},
          {"kept_energy", cell(r.kept_energy)},
          {"missed", cell(r.missed)},
          {"false_positives", cell(r.false_positives)}};
}

double break_even_speed(const row& r, uint32_t ranks) {
  const double n = ranks, dense_bits = 64.0 * static_cast<double>(r.d) * (n - 1) / n;
  const double saved_bits = dense_bits - 8.0 * static_cast<double>(r.bytes) * (n - 1);
  const double seconds = (r.sparsify_ns + r.encode_ns + n * r.decode_ns) * 1e-9;
  return saved_bits > 0 && seconds > 0 ? saved_bits / seconds : 0;
}

}  // namespace dr::compare
