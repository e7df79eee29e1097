#include "row.hpp"

#include <cmath>

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

ordered_json cell(double number) { return std::isfinite(number) ? ordered_json(number) : ordered_json(nullptr); }
ordered_json cell(const std::optional<uint64_t>& number) {
  return number ? ordered_json(*number) : ordered_json(nullptr);
}
ordered_json cell(const std::string& text) { return text.empty() ? ordered_json(nullptr) : ordered_json(text); }
ordered_json nanoseconds(double time) {
  return std::isfinite(time) ? ordered_json(static_cast<uint64_t>(std::llround(time))) : ordered_json(nullptr);
}
ordered_json nanoseconds(const std::vector<double>& times) {
  auto list = ordered_json::array();
  for (const double t : times) list.push_back(nanoseconds(t));
  return list;
}

}  // namespace

ordered_json to_json(const row& r) {
  return {{"input", r.input},
          {"tensor", r.tensor},
          {"kind", cell(r.kind)},
          {"step", r.step},
          {"dtype", r.dtype},
          {"d", r.d},
          {"r", cell(r.r)},
          {"support", cell(r.support)},
          {"plan", r.plan},
          {"preset", cell(r.preset)},
          {"choice", cell(r.choice)},
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
          {"total_error", cell(r.total_error)},
          {"energy_recall", cell(r.energy_recall)},
          {"index_recall", cell(r.index_recall)},
          {"relative_l2_error", cell(r.relative_l2_error)},
          {"max_relative_error", cell(r.max_relative_error)},
          {"cosine_similarity", cell(r.cosine_similarity)},
          {"contraction", cell(r.contraction)},
          {"gradient_energy", cell(r.gradient_energy)},
          {"kept_energy", cell(r.kept_energy)},
          {"missed", cell(r.missed)},
          {"false_positives", cell(r.false_positives)},
          {"rounds", r.rounds},
          {"sparsify_ns", nanoseconds(r.sparsify_ns)},
          {"encode_ns", nanoseconds(r.encode_ns)},
          {"decode_ns", nanoseconds(r.decode_ns)},
          {"merge_ns", nanoseconds(r.merge_ns)},
          {"sparsify_ns_spread", cell(r.sparsify_ns_spread)},
          {"encode_ns_spread", cell(r.encode_ns_spread)},
          {"decode_ns_spread", cell(r.decode_ns_spread)},
          {"merge_ns_spread", cell(r.merge_ns_spread)},
          {"encode_cpu_ns", nanoseconds(r.encode_cpu_ns)},
          {"decode_cpu_ns", nanoseconds(r.decode_cpu_ns)},
          {"choose_ns", nanoseconds(r.choose_ns)},
          {"index_ns", nanoseconds(r.index_ns)},
          {"regather_ns", nanoseconds(r.regather_ns)},
          {"value_ns", nanoseconds(r.value_ns)},
          {"order_ns", nanoseconds(r.order_ns)},
          {"pays_below", cell(r.pays_below)},
          {"pays_below_bf16", cell(r.pays_below_bf16)},
          {"step_ns", nanoseconds(r.step_ns)},
          {"gather_step_ns", nanoseconds(r.gather_step_ns)},
          {"dense_step_ns", nanoseconds(r.dense_step_ns)},
          {"bf16_step_ns", nanoseconds(r.bf16_step_ns)},
          {"verdict", cell(r.verdict)}};
}

ordered_json column_types() {
  ordered_json columns = to_json(row{});
  for (const char* text : {"kind", "preset", "choice", "fallback", "verdict"}) columns[text] = "";
  for (ordered_json& cell : columns)
    if (cell.is_null()) cell = 0;
  return columns;
}

ordered_json samples_json(const row& r) {
  return {{"encode_ns", nanoseconds(r.encode_samples)},
          {"decode_ns", nanoseconds(r.decode_samples)},
          {"merge_ns", nanoseconds(r.merge_samples)}};
}

ordered_json to_json(const failure& f) {
  return {{"input", f.input}, {"tensor", f.tensor}, {"step", f.step}, {"plan", f.plan}, {"error", f.error}};
}

const char* const column_help =
    R"(Columns of csv and of the rows in json:
  input tensor kind step dtype d                what was compressed: d elements of that type, of a layer of that kind; 1 is the
                            first step
  r support                 nonzeros that the sparsifier kept, and that decode gives back
  plan preset choice        the canonical plan; the presets that gave it; the codecs that `auto` took
  fallback                  none, raw_index or dense: what the frame fell back to where that is shorter; of a batch, all of it
  bytes index_bytes value_bytes order_bytes header_bytes
  relative_volume           bytes / (4 d): of dense f32, whatever the type
  index_bits_per_nonzero value_bits_per_nonzero index_bound_bits_per_nonzero     by r; the bound is log2 C(d,r) / r
  total_error               |g - c| / |g|: what arrives (c) against the dense tensor (g); the loss of sparsifier and codecs.
                            With --steps |sum g - sum c| / |sum g| over the steps so far (g times feedback's gamma)
  energy_recall             share of |g|^2 at the positions that arrive
  index_recall              share of the kept positions that arrive
  relative_l2_error max_relative_error          the coding error: what arrives against what the sparsifier kept
  cosine_similarity contraction                 against the dense tensor; contraction is |g - c|^2 / |g|^2
  gradient_energy kept_energy                   |g|^2 (of later steps: of the sum) and |s|^2, by which totals weigh errors
  missed false_positives    positions that were kept and do not arrive, and the other way round
  rounds                    timed rounds
  sparsify_ns encode_ns decode_ns merge_ns      medians; encode without sparsify; merge: a frame of each rank
  sparsify_ns_spread encode_ns_spread decode_ns_spread merge_ns_spread           (75th - 25th percentile) / median
  encode_cpu_ns decode_cpu_ns                   CPU time of all threads; encode with sparsify
  choose_ns index_ns regather_ns value_ns order_ns                               parts of encode_ns, medians
  pays_below pays_below_bf16                    bit/s, against a ring all-reduce of the dense tensor, and in 16 bits
  step_ns gather_step_ns dense_step_ns bf16_step_ns verdict                      with --link: see above
Json has rows with `samples` (encode_ns, decode_ns, merge_ns of each round) between machine, commit, build and settings,
and `failures`: the plans that failed, each with its error.
0/0 is 0, but the recall of nothing is 1; what is undefined is null, empty in csv.)";

}  // namespace dr::compare
