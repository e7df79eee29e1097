// The columns of a row, by columns.cpp: { name, title, kind: how a number is written, text: its meaning }.
const COLUMNS = [...JSON.parse(document.getElementById("columns").textContent),
  { name: "timed", title: "timed", kind: "text", text: "python: timed by a Python codec, whose times do not compare with others; native: the library's C++" }];
const FIRST_COLUMNS = ["plan", "tensor", "input", "step", "bytes", "relative_volume", "relative_l2_error", "total_error",
  "encode_ns", "decode_ns", "verdict", "pays_below_bf16"];

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
// " ± 23 %" beside a time whose spread (of columns.cpp) is above a tenth.
function spreadText(row, name) {
  const spread = row[`${name}_spread`];
  return !isNumber(spread) || spread <= 0.1 ? "" : ` ± ${spread > 1 ? "> 100" : Math.round(100 * spread)} %`;
}
const superscript = (n) => [...String(n)].map((c) => c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]).join("");
