// The page: what is selected, and what follows from it.
const MOST_BARS = 40;
// plan: the one asked for, else the best under the limit.
const state = { scope: "", step: "", sparsify: "", asked: null, plan: null, limit: null };
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

function fillScopes() {
  const stepped = rows.some((row) => row.step > 1);
  const options = inputs.length > 1 ? [["", `all ${inputs.length} inputs${stepped ? ": the last step" : ""}`]] : [];
  for (const input of inputs) {
    const tensors = TENSORS.filter(([from]) => from === input).map(([, tensor]) => tensor);
    options.push([JSON.stringify([input]), tensors.length > 1 ? `${inputName(input)}: all ${tensors.length} tensors` : inputName(input)]);
    if (tensors.length > 1) for (const tensor of tensors) options.push([JSON.stringify([input, tensor]), `${inputName(input)}: ${tensor}`]);
  }
  // All inputs at once only if most plans ran on all of them.
  const { plans, partial } = totals(rows.filter(stepFilter()));
  state.scope = fill($("scope"), options, plans.length >= partial ? "" : options[1]?.[0]);
}

// ---- Result ---------------------------------------------------------------------------------------------

function planText(row) {
  return element("span", { class: "plan" }, row.preset ? `${row.preset}: ${row.plan}` : row.plan);
}

// Of totals none of which has the error.
function whyNoError(list, name, title) {
  return list.some(({ parts }) => parts.length > 1 && parts.some((row) => isNumber(row[name])))
    ? `The ${title} of the tensors together is not known; select one tensor.`
    : `The ${title} of these rows is not known: a value is NaN or infinite, or the rows came without errors.`;
}

// What a plan is compared with, of all parts of a total.
function denseText(row) {
  const types = unique(row.parts.map(({ dtype }) => dtype));
  return types.length === 1 && types[0] && !types[0].includes("+") ? `dense ${types[0]}` : "the dense tensor in its own type";
}

function drawResult(list, tensors) {
  const found = best(list, state.limit), least = list.filter((row) => isNumber(row.total_error)).sort((a, b) => a.total_error - b.total_error || a.bytes - b.bytes)[0];
  const facts = (row) => `: ${write("bytes", row.bytes)} (${write("share", row.relative_volume)} of dense f32), total error ${write("error", row.total_error)}, encode ${write("time", row.encode_ns)}, decode ${write("time", row.decode_ns)}.`;
  if (found) $("best").replaceChildren("the plan of fewest bytes is ", planText(found), facts(found));
  else if (least) $("best").replaceChildren("no plan here. The least is ", planText(least), facts(least));
  else $("best").textContent = list.length ? `unknown. ${whyNoError(list, "total_error", "total error")}` : "no rows are selected.";
  $("pays").textContent = found ? payment(found, tensors) : "";
}

// Whether the plan pays at the given link, or below which rate.
function payment(row, tensors) {
  const ranks = measured.ranks ? `${measured.ranks} ranks` : "the ranks", dense = denseText(row);
  if (isNumber(row.step_ns) && isNumber(row.dense_step_ns)) {
    const short = row.bf16_step_ns < row.dense_step_ns ? `, in 16 bits ${write("time", row.bf16_step_ns)}` : "";
    const pays = row.parts.filter((part) => part.verdict === "pays").length, single = tensors > 1 ? ` By itself it pays on ${pays} of ${tensors} tensors.` : "";
    const verdict = { pays: "It pays.", slower: "It does not pay.", even: "The difference is within the spread of the measurement." }[row.verdict] ?? "";
    const overlap = row.stages.get("exchange")?.includes("parts=") ? "only its parts overlap" : "nothing overlaps";
    return `${verdict}${single} At ${linkText()} and ${ranks}, its modelled exchange takes ${write("time", row.step_ns)}, that of ${dense} ${write("time", row.dense_step_ns)}${short} (a model: ${overlap}).`.trim();
  }
  const rates = row.parts.map((part) => part.pays_below), low = Math.min(...rates), high = Math.max(...rates);
  if (!rates.every(isNumber)) return "";
  if (high <= 0) return `It pays against ${dense} on no link with ${ranks} (a model).`;
  const below = (rate, range = "") => `It pays against ${dense} on links of less than ${write("rate", rate)} for each of ${ranks}${range} (a model; --link RATE models your link).`;
  if (tensors === 1) return below(high);
  if (low > 0 && isNumber(row.pays_below)) return below(row.pays_below, `, by itself on tensors below ${write("rate", low)} to ${write("rate", high)}`);
  return below(low > 0 ? low : high, low > 0 ? ` on every tensor, and on some below ${write("rate", high)}` : " on some of the tensors");
}

function linkText() {
  const link = measured.link;
  if (link === null || typeof link !== "object") return String(link);
  const rate = Object.values(link).find(isNumber);
  return link.text ?? (isNumber(link.latency_ns) && link.latency_ns > 0 ? `${write("rate", rate)}, ${write("time", link.latency_ns)}` : write("rate", rate));
}

// ---- Charts ---------------------------------------------------------------------------------------------

const STAGES = [["sparsify", "c8", (row) => row.sparsify_ns], ["index", "c1", (row) => row.index_ns], ["value", "c2", (row) => row.value_ns], ["order", "c4", (row) => row.order_ns],
  ["other of encode", "c5", (row) => Math.max(0, row.encode_ns - (row.index_ns ?? 0) - (row.value_ns ?? 0) - (row.order_ns ?? 0))], ["decode", "c3", (row) => row.decode_ns], ["merge", "c6", (row) => row.merge_ns]];

function drawPlans(list) {
  const points = (y) => list.map((row) => ({ x: row.bytes, y: y(row), row })).filter((p) => isNumber(p.y) && p.x > 0);
  const bytes = { kind: "bytes", title: "bytes" };
  const error = COLUMNS.find((c) => c.name === $("error").value);
  scatter("error-chart", points((row) => row[error.name]), bytes, { kind: "error", title: error.title },
    { note: `Relative L2 distance from the ${error.name === "total_error" ? "dense gradient" : "selected values"}.`, empty: list.length ? whyNoError(list, error.name, error.title) : "No rows." });
  scatter("time-chart", points(callTime), bytes, { kind: "time", title: "encode + decode" }, { note: "Medians, without the sparsifier." , empty: "No times." });

  const shortest = [...list].sort((a, b) => a.bytes - b.bytes), some = shortest.slice(0, MOST_BARS);
  const cutNote = shortest.length > MOST_BARS ? ` The ${MOST_BARS} plans of fewest bytes of ${shortest.length}.` : "";
  const items = (cells) => some.map((row) => ({ name: row.plan, short: shortName(row.plan), plan: row.plan, row, cells: cells(row) }));
  const bits = (name) => (row) => row.r > 0 ? 8 * (row[name] ?? 0) / row.r : 0;
  const parts = [["index", "c1"], ["value", "c2"], ["order", "c4"], ["header", "c6"]].map(([title, c]) => ({ title, colour: colour(c), of: bits(`${title}_bytes`) }));
  bars("bits-chart", items((row) => [...parts.map((part) => [part.title, write("bits", part.of(row))]), ["sum", write("bits", 8 * row.bytes / row.r)]]), parts, "bits", "bits a nonzero",
    { note: `8 · bytes / selected nonzeros.${cutNote}`, empty: "No rows." });
  const known = STAGES.filter(([,, of]) => some.some((row) => of(row) > 0)).map(([title, c, of]) => ({ title: title === "other of encode" && !some.some((row) => row.index_ns > 0) ? "encode" : title, colour: colour(c), of }));
  bars("split-chart", items((row) => known.map((part) => [part.title, write("time", part.of(row))])), known, "time", "time",
    { note: `Medians; stages inside encode from one traced call; merge: decoding and adding the frames of all ranks.${cutNote}`, empty: "No rows." });
}

function drawLayers(list) {
  const chosen = list.find((row) => row.plan === state.plan), many = chosen && unique(chosen.parts.map((row) => row.input)).length > 1;
  const parts = chosen && chosen.parts.length > 1 ? [...chosen.parts].sort((a, b) => b.bytes - a.bytes) : [];
  const name = (row) => many ? `${inputName(row.input)}${row.tensor === "*" ? "" : ` ${row.tensor}`}` : row.tensor;
  const items = parts.slice(0, 2 * MOST_BARS).map((row) => ({ name: name(row), row, cells: describe(row) }));
  const more = parts.length > items.length ? ` The ${items.length} largest of ${parts.length}.` : "";
  bars("layers-chart", items, [{ title: "bytes", colour: colour("c1"), of: (row) => row.bytes }], "bytes", "bytes",
    { note: items.length ? `${state.plan}.${more}` : "", empty: "One tensor is selected. Select an input of several tensors; compare --per-tensor measures every tensor of a file." });
}

function drawSupport() {
  const shown = subjects.map((s, i) => [s, i]).filter(([s]) => inScope(s) && (!state.sparsify || stages(s.sparsify).get("sparsify") === state.sparsify || s.sparsify === state.sparsify));
  const text = (s) => [inputName(s.input), s.tensor === "*" ? "" : s.tensor, s.sparsify].filter(Boolean).join("  ");
  $("data").hidden = subjects.length === 0;
  const s = subjects[Number(fill($("subject"), shown.map(([s, i]) => [String(i), text(s)]), $("subject").value))];
  const facts = s ? `${write("count", s.r)} of ${write("count", s.d)} elements (${write("share", s.r / s.d)}), ${s.dtype}.` : "";
  const p = s ? s.r / s.d : 0, uniform = (k) => s.r * ((1 - p) ** (2 ** k - 1) - (1 - p) ** (2 ** (k + 1) - 1));
  const gaps = (s?.gaps.log2 ?? []).map((count, k) => ({ name: k ? `${2 ** k} to ${2 ** (k + 1) - 1}` : "1", short: write("count", 2 ** k), count, expected: uniform(k),
    cells: [["positions", write("count", count)], ["uniform support", digits(uniform(k))]] }));
  histogram("gaps-chart", gaps, "gap (from this power of two to the next)", { title: "uniform support of the same density" },
    { note: `Distance to the previous selected position; the first counts from -1. ${facts}`, empty: "No support for this selection." });
  const first = s?.magnitudes.log2_first ?? 0;
  const sizes = (s?.magnitudes.counts ?? []).map((count, i) => ({ name: `2^${first + i} to 2^${first + i + 1}`, short: `2^${first + i}`, count, cells: [["values", write("count", count)]] }));
  const rest = [[s?.magnitudes.zeros, "zero"], [s?.magnitudes.not_finite, "not finite"]].filter(([n]) => n > 0).map(([n, word]) => `${write("count", n)} ${word}.`).join(" ");
  histogram("magnitudes-chart", sizes, "magnitude (from this power of two to the next)", null, { note: `${facts} ${rest}`.trim(), empty: "No values for this selection." });
}

// ---- The rest -------------------------------------------------------------------------------------------

function drawLegend(list) {
  const seen = (stage) => new Set(list.map((row) => codec(row.stages.get(stage)))), marks = [], others = [];
  const picture = (shape, fill) => {
    const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
    canvas.width = canvas.height = 28;
    context.scale(2, 2), context.fillStyle = context.strokeStyle = fill, context.lineWidth = 1.5;
    Chart.helpers.drawPoint(context, { pointStyle: shape, radius: 5, borderWidth: 1.5 }, 7, 7);
    return element("img", { src: canvas.toDataURL(), width: "14", height: "14", alt: "" });
  };
  for (const name of seen("index")) marks.push(element("span", {}, picture("rectRounded", colour(`c${indexFamilies.get(name) + 1}`)), `index ${name}`));
  for (const name of seen("value")) others.push(element("span", {}, picture(SHAPES[valueFamilies.get(name)], colour("soft")), `value ${name}`));
  $("legend").replaceChildren(...marks, element("span", { class: "break" }), ...others);
}

function update() {
  const { plans: list, tensors, partial } = totals(rows.filter(stepFilter()).filter((row) => inSelection(row)));
  const names = [...list].sort((a, b) => a.bytes - b.bytes).map((row) => row.plan);
  if (state.limit === null) $("limit").value = state.limit = usualLimit(list);
  state.plan = fill($("plan"), names.map((plan) => [plan, plan]), state.asked ?? best(list, state.limit)?.plan);
  $("coverage").textContent = [`${list.length} plans`, tensors > 1 ? `on ${tensors} tensors: bytes and times are summed, errors are combined by energy` : "",
    partial ? `${partial} plans are left out here because they lack some of these tensors` : ""].filter(Boolean).join("; ") + ".";
  drawResult(list, tensors);
  drawLegend(list);
  drawPlans(list);
  drawLayers(list);
  drawSupport();
  drawTraining();
  drawTable();
}
