#include "columns.hpp"

#include <cmath>
#include <string_view>

#include "tool/show/json_number.hpp"

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

ordered_json cell(double number) { return finite(number); }
ordered_json cell(const std::optional<uint64_t>& number) {
  return number ? ordered_json(*number) : ordered_json(nullptr);
}
ordered_json cell(const std::string& text) { return text.empty() ? ordered_json(nullptr) : ordered_json(text); }
// null: unknown, or beyond 64 bits.
ordered_json nanoseconds(double time) {
  return time < 9e18 ? ordered_json(static_cast<uint64_t>(std::llround(time))) : ordered_json(nullptr);
}
ordered_json nanoseconds(const std::vector<double>& times) {
  auto list = ordered_json::array();
  for (const double t : times) list.push_back(nanoseconds(t));
  return list;
}

// A number of the distortion; memcpy has none.
template <auto member>
ordered_json error_cell(const row& r) {
  return r.error ? ordered_json(cell((*r.error).*member)) : ordered_json(nullptr);
}
template <auto member>
ordered_json median_cell(const row& r) {
  return nanoseconds((r.times.*member).median);
}
template <auto member>
ordered_json spread_cell(const row& r) {
  return cell((r.times.*member).spread);
}

const column table[] = {
    {"input", "input", "text", "argument that the gradient was read from: a file, or a synth: text",
     [](const row& r) { return ordered_json(r.input); }},
    {"tensor", "tensor", "text",
     "name of the tensor; \"*\": all joined; \"[N tensors]\": a batch; \"\": a file of one array",
     [](const row& r) { return ordered_json(r.tensor); }},
    {"kind", "kind", "text",
     "kind of the layer, by name and shape: conv, embedding, linear, recurrent, attention, norm_bias, other; null if "
     "unknown",
     [](const row& r) { return cell(r.kind); }},
    {"step", "step", "count", "step of the training; the first is 1",
     [](const row& r) { return ordered_json(r.step); }},
    {"dtype", "type", "text", "type of the elements: f32, f16 or bf16; of a batch, joined by +",
     [](const row& r) { return ordered_json(r.dtype); }},
    {"d", "elements", "count", "elements of the dense tensor", [](const row& r) { return ordered_json(r.d); }},
    {"r", "selected", "count", "nonzeros that the sparsifier selected", [](const row& r) { return cell(r.r); }},
    {"support", "support", "count", "nonzeros that decode returns; more than r if an index codec adds false positives",
     [](const row& r) { return cell(r.support); }},
    {"plan", "plan", "text", "canonical text of the plan; \"memcpy\": a plain copy of the dense tensor",
     [](const row& r) { return ordered_json(r.plan); }},
    {"preset", "preset", "text", "presets that contain the plan, joined by \", \"",
     [](const row& r) { return cell(r.preset); }},
    {"choice", "auto's choice", "text", "codecs that `auto` chose, as stages of a plan",
     [](const row& r) { return cell(r.choice); }},
    {"fallback", "fallback", "text",
     "shorter form that the frame fell back to: none, raw_index or dense; of a batch, what all tensors share",
     [](const row& r) { return cell(r.fallback); }},
    {"bytes", "bytes", "bytes", "size of the frame", [](const row& r) { return ordered_json(r.sizes.total); }},
    {"index_bytes", "index", "bytes", "size of the index stream", [](const row& r) { return cell(r.sizes.index); }},
    {"value_bytes", "value", "bytes", "size of the value stream", [](const row& r) { return cell(r.sizes.value); }},
    {"order_bytes", "order", "bytes", "size of the permutation, if the value codec reorders values",
     [](const row& r) { return cell(r.sizes.order); }},
    {"header_bytes", "header", "bytes", "all other bytes of the frame",
     [](const row& r) { return cell(r.sizes.header); }},
    {"relative_volume", "of dense", "share", "bytes / (4 d): share of dense f32, whatever the type",
     [](const row& r) { return cell(r.sizes.relative_volume); }},
    {"index_bits_per_nonzero", "index", "bits", "8 index_bytes / r",
     [](const row& r) { return cell(r.sizes.index_bits); }},
    {"value_bits_per_nonzero", "value", "bits", "8 value_bytes / r",
     [](const row& r) { return cell(r.sizes.value_bits); }},
    {"index_bound_bits_per_nonzero", "bound", "bits",
     "log2 C(d, r) / r: what any index codec needs on average if all supports are equally likely",
     [](const row& r) { return cell(r.sizes.index_bound_bits); }},
    {"total_error", "total error", "error",
     "|g - c| / |g|: the decoded tensor c against the dense gradient g. With --steps |sum g - sum c| / |sum g| "
     "over the steps so far, g scaled by feedback's gamma",
     [](const row& r) { return cell(r.total_error); }},
    {"energy_recall", "energy recall", "share",
     "share of the gradient's squared norm, |g|^2, that is sent: at the positions that decode returns",
     error_cell<&distortion::energy_recall>},
    {"index_recall", "recall", "share", "share of the selected positions that decode returns",
     error_cell<&distortion::index_recall>},
    {"relative_l2_error", "coding error", "error",
     "coding error |s - c| / |s|: the decoded tensor against the selected values s",
     error_cell<&distortion::relative_l2_error>},
    {"max_relative_error", "max. error", "error", "max |s - c| / max |s|", error_cell<&distortion::max_relative_error>},
    {"cosine_similarity", "cosine", "error", "cosine of the angle between g and c",
     error_cell<&distortion::cosine_similarity>},
    {"contraction", "contraction", "error", "|g - c|^2 / |g|^2: the square of the total error of one step",
     error_cell<&distortion::contraction>},
    {"gradient_energy", "|g|²", "error", "|g|^2, by which totals weigh total_error; of later steps, of the sum",
     error_cell<&distortion::gradient_energy>},
    {"kept_energy", "|s|²", "error", "|s|^2, by which totals weigh relative_l2_error",
     error_cell<&distortion::selected_energy>},
    {"missed", "missed", "count", "selected positions that decode does not return", error_cell<&distortion::missed>},
    {"false_positives", "false positives", "count", "positions that decode returns and that were not selected",
     error_cell<&distortion::false_positives>},
    {"rounds", "rounds", "count", "timed rounds, after one that warms up",
     [](const row& r) { return ordered_json(r.times.rounds); }},
    {"sparsify_ns", "sparsify", "time", "median time of the sparsifier", median_cell<&row_times::sparsify>},
    {"encode_ns", "encode", "time", "median time of encode, without the sparsifier", median_cell<&row_times::encode>},
    {"decode_ns", "decode", "time", "median time of decode, to a dense tensor", median_cell<&row_times::decode>},
    {"merge_ns", "merge", "time", "median time to decode and add up a frame of every rank",
     median_cell<&row_times::merge>},
    {"sparsify_ns_spread", "± sparsify", "share", "(75th - 25th percentile) / median of sparsify_ns",
     spread_cell<&row_times::sparsify>},
    {"encode_ns_spread", "± encode", "share", "(75th - 25th percentile) / median of encode_ns",
     spread_cell<&row_times::encode>},
    {"decode_ns_spread", "± decode", "share", "(75th - 25th percentile) / median of decode_ns",
     spread_cell<&row_times::decode>},
    {"merge_ns_spread", "± merge", "share", "(75th - 25th percentile) / median of merge_ns",
     spread_cell<&row_times::merge>},
    {"encode_cpu_ns", "encode, CPU", "time", "CPU time of encode, all threads, sparsifier included",
     [](const row& r) { return nanoseconds(r.times.encode_cpu); }},
    {"decode_cpu_ns", "decode, CPU", "time", "CPU time of decode, all threads",
     [](const row& r) { return nanoseconds(r.times.decode_cpu); }},
    {"choose_ns", "choose", "time", "part of encode_ns: the choice by `auto`",
     [](const row& r) { return nanoseconds(r.times.choose); }},
    {"index_ns", "index", "time", "part of encode_ns: index codecs",
     [](const row& r) { return nanoseconds(r.times.index); }},
    {"regather_ns", "gather", "time", "part of encode_ns: gathering values again if the support changed",
     [](const row& r) { return nanoseconds(r.times.regather); }},
    {"value_ns", "value", "time", "part of encode_ns: value codecs",
     [](const row& r) { return nanoseconds(r.times.value); }},
    {"order_ns", "order", "time", "part of encode_ns: order codecs",
     [](const row& r) { return nanoseconds(r.times.order); }},
    {"pays_below", "pays below", "rate",
     "bit/s of a rank's link below which the plan's exchange beats a ring all-reduce of the dense tensor; 0: at no "
     "speed",
     [](const row& r) { return cell(r.model.pays_below); }},
    {"pays_below_bf16", "pays below, bf16", "rate", "the same against the dense tensor in 16 bits",
     [](const row& r) { return cell(r.model.pays_below_bf16); }},
    {"step_ns", "step", "time", "with --link: modelled time of the plan's exchange",
     [](const row& r) { return nanoseconds(r.model.step_ns); }},
    {"gather_step_ns", "gather step", "time", "the same by an all-gather, whatever exchange the plan names",
     [](const row& r) { return nanoseconds(r.model.gather_step_ns); }},
    {"dense_step_ns", "dense step", "time", "the same for a ring all-reduce of the dense tensor",
     [](const row& r) { return nanoseconds(r.model.dense_step_ns); }},
    {"bf16_step_ns", "bf16 step", "time", "the same for a ring all-reduce of the dense tensor in 16 bits",
     [](const row& r) { return nanoseconds(r.model.bf16_step_ns); }},
    {"verdict", "verdict", "text",
     "pays or slower: step_ns against the faster of dense_step_ns and bf16_step_ns; even: within the spread; "
     "unknown: not modelled",
     [](const row& r) { return cell(r.model.verdict); }},
};

}  // namespace

std::span<const column> columns() { return table; }

ordered_json to_json(const row& r) {
  ordered_json cells;
  for (const column& c : table) cells[c.name] = c.cell(r);
  return cells;
}

ordered_json column_types() {
  ordered_json types;
  for (const column& c : table)
    types[c.name] = std::string_view(c.format) == "text" ? ordered_json("") : ordered_json(0);
  return types;
}

ordered_json columns_json() {
  ordered_json list = ordered_json::array();
  for (const column& c : table)
    list.push_back({{"name", c.name}, {"title", c.heading}, {"kind", c.format}, {"text", c.meaning}});
  return list;
}

ordered_json samples_json(const row& r) {
  return {{"encode_ns", nanoseconds(r.times.encode_samples)},
          {"decode_ns", nanoseconds(r.times.decode_samples)},
          {"merge_ns", nanoseconds(r.times.merge_samples)}};
}

ordered_json to_json(const failure& f) {
  return {{"input", f.input}, {"tensor", f.tensor}, {"step", f.step}, {"plan", f.plan}, {"error", f.error}};
}

}  // namespace dr::compare
