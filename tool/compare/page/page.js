// The page: what is selected, and what follows from it.
const mostBars = (printed) => onPaper() ? printed : 40;
// plan: the one asked for, else the best under the limit. ownLimit: by whoever reads the page. subject: asked for in “The data”.
const state = { scope: "", step: "", sparsify: "", asked: null, plan: null, limit: null, measure: "relative_l2_error", ownLimit: false, error: "", subject: "" };
const TENSORS = unique(rows.map((row) => JSON.stringify([row.input, row.tensor]))).map((text) => JSON.parse(text));
const run = (row) => row.from ?? "";  // the saved file of it, where there are several

// ---- Selection ------------------------------------------------------------------------------------------

// A scope is "" (all inputs), [input] or [input, tensor], as JSON.
function inScope(row) {
  const [input, tensor] = state.scope ? JSON.parse(state.scope) : [];
  return (input === undefined || row.input === input) && (tensor === undefined || row.tensor === tensor);
}
// The requested step, else the last step of every run in the scope: its inputs are steps of one training, or all have step 1.
function stepFilter() {
  const last = new Map();
  for (const row of rows.filter(inScope)) last.set(run(row), Math.max(last.get(run(row)) ?? 0, row.step ?? 1));
  return (row) => (row.step ?? 1) === (state.step ? Number(state.step) : last.get(run(row)));
}
function inSelection(row, copies = false) {
  if (!inScope(row) || (state.step && (row.step ?? 1) !== Number(state.step))) return false;
  if (row.plan === "memcpy") return copies && !state.sparsify && !$("text").value.trim();
  const words = $("text").value.split(/\s+/).filter(Boolean);
  return (!state.sparsify || row.sparsify === state.sparsify) && words.every((word) => row.plan.includes(word) || row.preset?.includes(word));
}

function choose(plan) {
  state.asked = plan;
  update();
  $("live").textContent = `Chosen plan: ${plan}`;
}

// options: [[value, text]]; stays at its value if that is still there.
function fill(select, options, value) {
  select.replaceChildren(...options.map(([choice, text]) => element("option", { value: choice }, text)));
  select.value = options.some(([choice]) => choice === value) ? value : options[0]?.[0] ?? "";
  return select.value;
}

// Inputs that one step may send together: the files of a model's arrays. Others are models of their own, or steps.
const STEPPED = rows.some((row) => row.step > 1);
const arraysOfOne = inputs.length > 1 && TENSORS.every(([input, tensor]) => tensor === "" && !input.startsWith("synth:"));

function fillScopes() {
  const options = STEPPED ? [["", `all ${inputs.length} inputs: the last step`]] : [];
  for (const input of inputs) {
    const tensors = TENSORS.filter(([from]) => from === input).map(([, tensor]) => tensor);
    options.push([JSON.stringify([input]), tensors.length > 1 ? `${input}: all ${tensors.length} tensors` : input]);
    if (tensors.length > 1) for (const tensor of tensors) options.push([JSON.stringify([input, tensor]), `${input}: ${tensor}`]);
  }
  if (arraysOfOne) options.push(["", `all ${inputs.length} inputs, added up`]);
  state.scope = fill($("scope"), options, options[0]?.[0]);
}

// ---- Charts ---------------------------------------------------------------------------------------------

const STAGES = [["sparsify", "c8", "rectRot", (row) => row.sparsify_ns], ["index", "c1", "circle", (row) => row.index_ns], ["value", "c2", "rect", (row) => row.value_ns], ["order", "c4", "rectRot", (row) => row.order_ns],
  ["other of encode", "c5", "circle", (row) => Math.max(0, row.encode_ns - (row.index_ns ?? 0) - (row.value_ns ?? 0) - (row.order_ns ?? 0))], ["decode", "c3", "triangle", (row) => row.decode_ns], ["merge", "c6", "rectRounded", (row) => row.merge_ns]];

function drawPlans(list) {
  const points = (y) => list.map((row) => ({ x: row.bytes, y: y(row), row })).filter((p) => isNumber(p.y) && p.x > 0);
  const bytes = { kind: "bytes", title: "bytes" };
  const error = COLUMNS.find((c) => c.name === $("error").value);
  scatter("error-chart", points((row) => row[error.name]), bytes, { kind: error.name === "total_error" ? "share of 1" : "error", title: error.title },
    { note: `Relative L2 distance from the ${error.name === "total_error" ? "dense gradient" : "selected values"}.`, empty: list.length ? whyNoError(list, error.name, error.title) : "No rows." });
  scatter("time-chart", points(callTime), bytes, { kind: "time", title: "encode + decode" }, { note: "Medians, without the sparsifier." , empty: "No times." });

  const shortest = [...list].sort((a, b) => a.bytes - b.bytes), some = shortest.slice(0, mostBars(16));
  const cutNote = shortest.length > some.length ? ` The ${some.length} plans of fewest bytes of ${shortest.length}.` : "";
  const items = (cells) => some.map((row) => ({ name: row.plan, short: shortName(row.plan), plan: row.plan, row, cells: cells(row) }));
  const bits = (name) => (row) => row.r > 0 ? 8 * (row[name] ?? 0) / row.r : 0;
  const parts = [["index", "c1"], ["value", "c2"], ["order", "c4"], ["header", "c6"]].map(([title, c]) => ({ title, colour: colour(c), of: bits(`${title}_bytes`) }));
  bars("bits-chart", items((row) => [...parts.map((part) => [part.title, write("bits", part.of(row))]), ["sum", write("bits", 8 * row.bytes / row.r)]]), parts, "bits", "bits a nonzero",
    { note: `8 · bytes / selected nonzeros.${cutNote}`, empty: "No rows." });
  const known = STAGES.filter(([,,, of]) => some.some((row) => of(row) > 0)).map(([title, c, shape, of]) => ({ title: title === "other of encode" && !some.some((row) => row.index_ns > 0) ? "encode" : title, colour: colour(c), shape, of }));
  const whole = { title: "encode + decode", colour: colour("line"), of: callTime };
  dots("split-chart", items((row) => [whole, ...known].map((part) => [part.title, write("time", part.of(row))])), whole, known, "time", "time",
    { note: `Medians, on a logarithmic axis; stages inside encode from one traced call; merge: decoding and adding the frames of all ranks.${cutNote}`, empty: "No rows." });
}

function drawLayers(list) {
  const chosen = list.find((row) => row.plan === state.plan), many = chosen && unique(chosen.parts.map((row) => row.input)).length > 1;
  const parts = chosen && chosen.parts.length > 1 ? [...chosen.parts].sort((a, b) => b.bytes - a.bytes) : [];
  const name = (row) => many ? `${row.input}${row.tensor === "*" ? "" : ` ${row.tensor}`}` : row.tensor;
  const items = parts.slice(0, mostBars(12)).map((row) => ({ name: name(row), row, cells: describe(row) }));
  const more = parts.length > items.length ? ` The ${items.length} largest of ${parts.length}.` : "";
  bars("layers-chart", items, [{ title: "bytes", colour: colour("c1"), of: (row) => row.bytes }], "bytes", "bytes",
    { note: items.length ? `${state.plan}.${more}` : "", empty: "One tensor is selected. Select an input of several tensors; compare --per-tensor measures every tensor of a file." });
}

const supportOf = (s) => stages(s.sparsify).get("sparsify") ?? s.sparsify;  // the sparsifier of a subject

// Opens on the largest tensor in the scope, with the sparsifier of the chosen plan.
function drawSupport() {
  const shown = subjects.map((s, i) => [s, i]).filter(([s]) => inScope(s) && (!state.sparsify || supportOf(s) === state.sparsify));
  const text = (s) => [s.input, s.tensor === "*" ? "" : s.tensor, s.sparsify].filter(Boolean).join("  ");
  const found = stages(state.plan ?? ""), fed = found.get("feedback"), least = (s) => s.sparsify.includes("feedback=") === (fed !== undefined) ? 0 : 1;
  const order = ([a], [b]) => (supportOf(b) === (found.get("sparsify") ?? "none")) - (supportOf(a) === (found.get("sparsify") ?? "none")) || b.d - a.d || least(a) - least(b);
  const usual = [...shown].sort(order)[0]?.[1];
  $("data").hidden = subjects.length === 0;
  const s = subjects[Number(fill($("subject"), shown.map(([s, i]) => [String(i), text(s)]), shown.some(([, i]) => String(i) === state.subject) ? state.subject : String(usual)))];
  const facts = s ? `${write("count", s.r)} of ${write("count", s.d)} elements (${write("share", s.r / s.d)}), ${s.dtype}.` : "";
  const p = s ? s.r / s.d : 0, uniform = (k) => s.r * ((1 - p) ** (2 ** k - 1) - (1 - p) ** (2 ** (k + 1) - 1));
  const gaps = (s?.gaps.log2 ?? []).map((count, k) => ({ name: k ? `${2 ** k} to ${2 ** (k + 1) - 1}` : "1", short: write("count", 2 ** k), count, expected: uniform(k),
    cells: [["positions", write("count", count)], ["uniform support", digits(uniform(k))]] }));
  histogram("gaps-chart", gaps, "gap (from this power of two to the next)", { title: "uniform support of the same density" },
    { note: `Distance to the previous selected position; the first counts from -1. ${facts}`, empty: "No support for this selection." });
  const first = s?.magnitudes.log2_first ?? 0;
  const sizes = (s?.magnitudes.counts ?? []).map((count, i) => ({ name: `2${superscript(first + i)} to 2${superscript(first + i + 1)}`, short: `2${superscript(first + i)}`, count, cells: [["values", write("count", count)]] }));
  const rest = [[s?.magnitudes.zeros, "zero"], [s?.magnitudes.not_finite, "not finite"]].filter(([n]) => n > 0).map(([n, word]) => `${write("count", n)} ${word}.`).join(" ");
  histogram("magnitudes-chart", sizes, "magnitude (from this power of two to the next)", null, { note: `${facts} ${rest}`.trim(), empty: "No values for this selection." });
}

// ---- The rest -------------------------------------------------------------------------------------------

// What the first chart shows: with one sparsifier only the coding error varies.
function varyingError(list) {
  const sparse = list.filter((row) => row.sparsify !== "none"), different = (of) => unique(sparse.map(of)).length > 1;
  return different((row) => row.relative_l2_error) && !different((row) => row.sparsify) ? "relative_l2_error" : "total_error";
}

function drawLegend(list) {
  const seen = (stage) => unique(list.map((row) => codecOf(row, stage))).sort();
  const picture = ({ pointStyle, rotation, backgroundColor, borderColor, borderWidth }) => {
    const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
    canvas.width = canvas.height = 28;
    context.scale(2, 2), context.fillStyle = backgroundColor, context.strokeStyle = borderColor, context.lineWidth = borderWidth;
    Chart.helpers.drawPoint(context, { pointStyle, rotation, radius: 5, borderWidth }, 7, 7);
    return element("img", { src: canvas.toDataURL(), width: "14", height: "14", alt: "" });
  };
  const grey = (style) => ({ ...style, backgroundColor: colour("soft"), borderColor: style.borderWidth > 1 ? colour("soft") : style.borderColor });
  const marks = seen("index").map((name) => element("span", {}, picture({ ...markStyle(name, "raw"), pointStyle: "circle", rotation: 0 }), `index ${name}`));
  const others = seen("value").map((name) => element("span", {}, picture(grey(markStyle("golomb", name))), `value ${name}`));
  $("legend").replaceChildren(...marks, element("span", { class: "break" }), ...others);
}

function update() {
  const ofPlans = totals(rows.filter(stepFilter()).filter((row) => inSelection(row))), { tensors } = ofPlans;
  const books = state.scope && JSON.parse(state.scope).length === 1 ? bookTotals.filter(stepFilter()).filter((row) => inSelection(row)) : [];
  const list = [...ofPlans.plans, ...books], partial = books.length ? 0 : ofPlans.partial;
  const names = [...list].sort((a, b) => a.bytes - b.bytes).map((row) => row.plan);
  const answer = theAnswer(list);
  setLimit(list, answer);
  state.plan = fill($("plan"), names.map((plan) => [plan, plan]), state.asked ?? answer?.total?.plan ?? smallest(list)?.plan);
  $("error").value = state.error || varyingError(list);
  $("coverage").textContent = [`${list.length} plan${list.length === 1 ? "" : "s"}`, tensors > 1 ? `on ${tensors} tensors: bytes and times are summed, errors are combined by energy` : "",
    partial ? `${partial} plans are left out here because they lack some of these tensors` : ""].filter(Boolean).join("; ") + ".";
  drawResult(list, tensors, answer);
  drawFiles();
  drawLegend(list);
  drawPlans(list);
  drawLayers(list);
  drawSupport();
  drawTraining();
  drawTable();
}
