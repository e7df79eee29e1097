// The columns of a row: name, heading, how a number is written, and its meaning for the glossary.
const COLUMNS = [
  ["input", "input", "text", "File, or the text of a synthetic tensor."],
  ["tensor", "tensor", "text", "Name in the file; * is all tensors of the file, joined."],
  ["kind", "kind", "text", "Kind of the layer, by name and shape: conv, embedding, linear, recurrent, attention, norm_bias, other."],
  ["step", "step", "count", "Step of training; 1 is the first. Feedback carries over from step to step."],
  ["dtype", "type", "text", "Element type of the gradient."],
  ["d", "elements", "count", "Elements of the dense tensor."],
  ["r", "kept", "count", "Nonzeros that the sparsifier kept."],
  ["support", "support", "count", "Nonzeros that decoding gives; more than kept where an index codec adds false positives."],
  ["plan", "plan", "text", "The stages, as the library writes them; memcpy is a plain copy of the dense tensor."],
  ["preset", "preset", "text", "Names of presets that give this plan."],
  ["choice", "auto's choice", "text", "Stages that auto chose for this tensor."],
  ["fallback", "fallback", "text", "raw_index or dense where the frame fell back to a simpler form because it is shorter; else none."],
  ["timed", "timed", "text", "native: C++ code of the library. python: a Python codec, whose times do not compare with others."],
  ["bytes", "bytes", "bytes", "Bytes of the frame."],
  ["index_bytes", "index", "bytes", "Bytes of the positions."],
  ["value_bytes", "value", "bytes", "Bytes of the values."],
  ["order_bytes", "order", "bytes", "Bytes of the permutation, if the value codec reorders values."],
  ["header_bytes", "header", "bytes", "All other bytes of the frame."],
  ["relative_volume", "of dense", "share", "bytes / (4 d): the share of dense f32, whatever the type."],
  ["index_bits_per_nonzero", "index", "bits", "8 · index_bytes / r."],
  ["value_bits_per_nonzero", "value", "bits", "8 · value_bytes / r."],
  ["index_bound_bits_per_nonzero", "bound", "bits", "log2 C(d, r) / r: no code for r of d positions that are all equally likely is shorter on average."],
  ["total_error", "total error", "error", "Relative L2 distance of the decoded tensor from the dense gradient, ‖g − ĝ‖ / ‖g‖; over the steps of a capture, of the sums."],
  ["energy_recall", "energy recall", "share", "Share of ‖g‖² at the positions that decoding gives."],
  ["relative_l2_error", "coding error", "error", "Relative L2 distance of the decoded tensor from the kept values: the loss by coding alone, without the sparsifier's."],
  ["max_relative_error", "max. error", "error", "Largest coding error of an element, by the largest kept magnitude."],
  ["index_recall", "recall", "share", "Share of the kept positions that decoding gives."],
  ["cosine_similarity", "cosine", "error", "Cosine of the angle between the dense gradient and the decoded tensor."],
  ["contraction", "contraction", "error", "‖g − ĝ‖² / ‖g‖²: the square of the total error of one step."],
  ["gradient_energy", "‖g‖²", "error", "Squared norm of the dense gradient; weighs the total error in totals."],
  ["kept_energy", "‖s‖²", "error", "Squared norm of the kept values; weighs the coding error in totals."],
  ["missed", "missed", "count", "Kept positions that decoding does not give."],
  ["false_positives", "false positives", "count", "Positions that decoding gives and that were not kept."],
  ["sparsify_ns", "sparsify", "time", "Median time of the sparsifier."],
  ["encode_ns", "encode", "time", "Median time of encoding, without the sparsifier."],
  ["decode_ns", "decode", "time", "Median time of decoding."],
  ["merge_ns", "merge", "time", "Median time to decode and add the frames of all ranks."],
  ["encode_cpu_ns", "encode, CPU", "time", "CPU time of the sparsifier and of encoding, all threads."],
  ["decode_cpu_ns", "decode, CPU", "time", "CPU time of decoding, all threads."],
  ["sparsify_ns_spread", "± sparsify", "share", "(75th − 25th percentile) / median of the rounds."],
  ["encode_ns_spread", "± encode", "share", "(75th − 25th percentile) / median of the rounds."],
  ["decode_ns_spread", "± decode", "share", "(75th − 25th percentile) / median of the rounds."],
  ["merge_ns_spread", "± merge", "share", "(75th − 25th percentile) / median of the rounds."],
  ["index_ns", "index", "time", "Index codec, in one traced encode."],
  ["value_ns", "value", "time", "Value codec, in one traced encode."],
  ["order_ns", "order", "time", "Order codec, in one traced encode."],
  ["regather_ns", "gather", "time", "Gathering values at the positions that decoding gives, in one traced encode."],
  ["choose_ns", "choose", "time", "Choice of codecs by auto, in one traced encode."],
  ["rounds", "rounds", "count", "Timed rounds, after one that warms up."],
  ["step_ns", "step", "time", "Modelled time of one exchange by this plan over the given link: its program run dry."],
  ["gather_step_ns", "gather step", "time", "The same by an all-gather of frames, whatever exchange the plan names."],
  ["dense_step_ns", "dense step", "time", "The same for a ring all-reduce of the dense tensor in its own type."],
  ["bf16_step_ns", "bf16 step", "time", "The same for a ring all-reduce of the dense tensor in 16 bits."],
  ["verdict", "verdict", "text", "pays: the modelled step is shorter than the dense one, the faster of its own type and 16 bits, by more than the spread; slower: longer by more; even: between; unknown: not modelled."],
  ["pays_below", "pays below", "rate", "Link rate of a rank below which the modelled step is shorter than a ring all-reduce of the dense tensor in its own type."],
  ["pays_below_bf16", "pays below, bf16", "rate", "The same against the dense tensor in 16 bits."],
].map(([name, title, kind, text]) => ({ name, title, kind, text }));
const FIRST_COLUMNS = ["input", "tensor", "step", "plan", "bytes", "relative_volume", "total_error", "relative_l2_error",
  "energy_recall", "sparsify_ns", "encode_ns", "decode_ns", "merge_ns", "verdict", "pays_below"];

// ---- Numbers as people read them ------------------------------------------------------------------------

const isNumber = (x) => typeof x === "number" && Number.isFinite(x);
const digits = (x, places = 3) => x === 0 ? "0" : Math.abs(x) >= 10 ** places ? Math.round(x).toLocaleString("en") :
  Math.abs(x) < 1e-4 ? x.toExponential(1) : String(Number(x.toPrecision(places)));
function scaled(x, unit, steps) {
  if (x === 0) return "0";
  const [factor, prefix] = steps.find(([factor]) => Math.abs(x) >= factor) ?? steps.at(-1);
  return `${digits(x / factor)} ${prefix}${unit}`;
}
const WRITE = {
  text: (x) => String(x),
  count: (x) => x.toLocaleString("en"),
  bytes: (x) => scaled(x, "B", [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]),
  time: (x) => scaled(x, "s", [[1e9, ""], [1e6, "m"], [1e3, "µ"], [1, "n"]]),
  rate: (x) => x === 0 ? "never" : scaled(x, "bit/s", [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]),
  bits: (x) => digits(x),
  share: (x) => `${digits(100 * x)} %`,
  error: (x) => digits(x, 4),
};
const write = (kind, x) => x === null || x === undefined || (kind !== "text" && !isNumber(x)) ? "–" : WRITE[kind](x);
