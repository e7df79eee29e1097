// The verdict: one plan, three numbers, and whether it pays.
const USUAL_CODING_ERROR = 0.07;  // models trained with it: bench/results/train.md
const MEASURES = { relative_l2_error: "coding error", total_error: "total error" };

function planText(row) {
  return element("span", { class: "plan" }, row.preset ? `${row.preset}: ${row.plan}` : row.plan);
}

// Of totals none of which has the error.
function whyNoError(list, name, title) {
  return list.some(({ parts }) => parts.length > 1 && parts.some((row) => isNumber(row[name])))
    ? `The ${title} of the tensors together is not known; select one tensor.`
    : `The ${title} of these rows is not known: a value is NaN or infinite, or the rows came without errors.`;
}

// ---- The choice -----------------------------------------------------------------------------------------

// A condition of --best that bounds an error: [column, number].
function boundOf(condition) {
  const [, column, number] = /^\s*(\w+)\s*<=?\s*([\d.eE+-]+)\s*$/.exec(condition) ?? [];
  const name = { error: "total_error", coding: "relative_l2_error" }[column] ?? column;
  return MEASURES[name] && Number.isFinite(Number(number)) ? [name, Number(number)] : null;
}

// What --best was answered for this scope, until the limit is changed; null if its plan is not among these.
function theAnswer(list) {
  const [input, tensor] = state.scope ? JSON.parse(state.scope) : [];
  if (state.ownLimit || tensor !== undefined || state.step) return null;
  const found = (measured.best ?? []).find((a) => a.scope === (input === undefined ? "all" : "model") && (input === undefined || a.input === input));
  return list.some((row) => row.plan === found?.total?.plan) ? found : null;
}

function setLimit(list, answer) {
  if (!state.ownLimit) {
    const asked = boundOf(answer?.condition ?? measured.best?.[0]?.condition ?? "");
    if (asked) [state.measure, state.limit] = asked;
    else {
      state.measure = list.some((row) => isNumber(row.relative_l2_error)) ? "relative_l2_error" : "total_error";
      state.limit = usualLimit(candidates(list), state.measure, state.measure === "total_error" ? 0.01 : USUAL_CODING_ERROR);
    }
  }
  if (Number($("limit").value) !== state.limit || $("limit").value === "") $("limit").value = state.limit;
  $("measure").value = state.measure;
}

const candidates = (list) => state.measure === "total_error" ? list : list.filter((row) => row.sparsify === usualSparsifier(list));
const smallest = (list) => best(candidates(list), state.measure, state.limit);

// ---- What is written of it ------------------------------------------------------------------------------

function drawResult(list, tensors, answer) {
  const chosen = list.find((row) => row.plan === state.plan), found = smallest(list), title = MEASURES[state.measure];
  const within = candidates(list).length < list.length ? `of ${usualSparsifier(list)} ` : "", bound = `${title} of at most ${write("error", state.limit)}`;
  const least = candidates(list).filter((row) => isNumber(row[state.measure])).sort((a, b) => a[state.measure] - b[state.measure] || a.bytes - b.bytes)[0];
  const free = within ? " How many elements to send, only training shows." : "";
  if (state.asked && chosen) $("best").replaceChildren(planText(chosen), ": your choice.");
  else if (answer) $("best").replaceChildren(...(answer.plan ? [planText(chosen), `: the least ${answer.by} with ${answer.condition}, as --best asks.`] : [`No plan here has ${answer.condition}, as --best asks. The nearest is `, planText(chosen), "."]));
  else if (found) $("best").replaceChildren(planText(found), `: the smallest ${within}with a ${bound}.${free}`);
  else if (least) $("best").replaceChildren(`No plan here ${within}has a ${bound}. The least is `, planText(least), `, ${write("error", least[state.measure])}.`);
  else $("best").textContent = list.length ? `Unknown. ${whyNoError(list, state.measure, title)}` : "No rows are selected.";
  drawTiles(state.asked || answer || found ? chosen : least);
  $("pays").textContent = chosen && (state.asked || answer || found) ? payment(chosen, tensors) : "";
}

const smaller = (row) => row.relative_volume > 0 ? `×${digits(1 / row.relative_volume, 3)}` : "–";
const codingText = (error) => error === 0 ? "exact" : isNumber(error) ? `${digits(100 * error, 2)} %` : "–";

function drawTiles(row) {
  const tile = (number, title, text) => element("div", {}, element("dt", {}, title), element("dd", {}, element("strong", {}, number), element("span", {}, text)));
  $("tiles").hidden = !row;
  if (!row) return $("tiles").replaceChildren();
  const sent = [isNumber(row.r) && row.d > 0 ? `${write("share", row.r / row.d)} of the elements` : "", isNumber(row.energy_recall) ? `${write("share", row.energy_recall)} of the gradient's energy` : ""].filter(Boolean).join(", ");
  const later = row.stages.has("feedback") ? "; the rest in later steps" : "";
  $("tiles").replaceChildren(
    tile(smaller(row), "smaller", `${write("bytes", row.bytes)} in place of ${write("bytes", 4 * row.d)} as f32`),
    isNumber(row.relative_l2_error) || !isNumber(row.total_error) ? tile(codingText(row.relative_l2_error), "coding error", sent ? `of what is sent: ${sent}${later}` : "of what is sent")
      : tile(codingText(row.total_error), "total error", "against the dense gradient"),
    tile(...paymentTile(row)));
}

const ranksText = () => measured.ranks ? `${measured.ranks} ranks` : "all ranks";
// What an exchange in 16 bits is: of 16-bit tensors the dense one.
const shortDense = (row) => row.parts.every(({ dtype }) => ["f16", "bf16"].includes(dtype)) ? denseText(row) : "dense bf16";

// [number, title, text]
function paymentTile(row) {
  if (isNumber(row.step_ns) && isNumber(row.dense_step_ns)) {
    const dense = Math.min(row.dense_step_ns, row.bf16_step_ns ?? Infinity), of = dense === row.bf16_step_ns ? shortDense(row) : denseText(row);
    return [{ pays: "pays", slower: "does not pay", even: "no difference" }[row.verdict] ?? "unknown", "on your link", `${digits(row.step_ns / dense, 2)} × the time of ${of}: ${linkText()}, ${ranksText()} (a model)`];
  }
  const rate = [row.pays_below_bf16, row.pays_below].find(isNumber), of = isNumber(row.pays_below_bf16) ? shortDense(row) : denseText(row);
  const number = !isNumber(rate) ? "–" : rate <= 0 ? "never" : write("rate", Number(rate.toPrecision(2)));
  return [number, "pays below", `this rate of a link, ${ranksText()}, against ${of} (a model)`];
}

// What a plan is compared with, of all parts of a total.
function denseText(row) {
  const types = unique(row.parts.map(({ dtype }) => dtype));
  return types.length === 1 && types[0] && !types[0].includes("+") ? `dense ${types[0]}` : "the dense tensor in its own type";
}

// Whether the plan pays at the given link, or below which rate.
function payment(row, tensors) {
  const ranks = measured.ranks ? `${measured.ranks} ranks` : "the ranks", dense = denseText(row);
  if (isNumber(row.step_ns) && isNumber(row.dense_step_ns)) {
    const short = row.bf16_step_ns < row.dense_step_ns ? `, in 16 bits ${write("time", row.bf16_step_ns)}` : "";
    const pays = row.parts.filter((part) => part.verdict === "pays").length, single = tensors > 1 && pays < tensors ? ` Exchanged alone, ${pays} of the ${tensors} tensors would.` : "";
    const verdict = { pays: "It pays.", slower: "It does not pay.", even: "The difference is within the spread of the measurement." }[row.verdict] ?? "";
    const overlap = row.stages.get("exchange")?.includes("parts=") ? "only its parts overlap" : "nothing overlaps";
    return `${verdict}${single} At ${linkText()} and ${ranks}, its modelled exchange takes ${write("time", row.step_ns)}, that of ${dense} ${write("time", row.dense_step_ns)}${short} (a model: ${overlap}).`.trim();
  }
  const slower = (rate) => `links slower than ${write("rate", rate)}`, model = `with ${ranks}, if nothing overlaps (a model; --link RATE models your link).`;
  const against = [[shortDense(row), "pays_below_bf16"], [dense, "pays_below"]].filter(([of], i, all) => i === 0 || of !== all[0][0]);
  const words = against.map(([of, name]) => {
    const rates = row.parts.map((part) => part[name]);
    if (!rates.every(isNumber)) return "";
    const rate = isNumber(row[name]) ? row[name] : Math.max(...rates);
    return rate <= 0 ? `against ${of} on no link` : `against ${of} on ${slower(rate)}${isNumber(row[name]) ? "" : " for some of the tensors, not for all"}`;
  }).filter(Boolean);
  return words.length ? `It pays ${words.join(", ")}, ${model}` : "";
}

function linkText() {
  const link = measured.link;
  if (link === null || typeof link !== "object") return String(link);
  const rate = Object.values(link).find(isNumber);
  return link.text ?? (isNumber(link.latency_ns) && link.latency_ns > 0 ? `${write("rate", rate)}, ${write("time", link.latency_ns)}` : write("rate", rate));
}

// ---- The other files ------------------------------------------------------------------------------------

// The chosen plan on each input, where inputs are models of their own.
function drawFiles() {
  const shown = STEPPED || arraysOfOne || inputs.length < 2 ? [] : inputs.slice(0, onPaper() ? 20 : 200).map((input) => {
    const of = totals(rows.filter((row) => row.input === input && row.plan === state.plan)).plans[0];
    const open = element("button", { type: "button", class: "link" }, input);
    open.addEventListener("click", () => { $("scope").value = JSON.stringify([input]); $("scope").dispatchEvent(new Event("change")); });
    return [open, ...(of ? [smaller(of), codingText(of.relative_l2_error), write("share", of.energy_recall), paymentTile(of)[0]] : ["–", "–", "–", "–"])];
  });
  $("files").hidden = shown.length === 0;
  $("files").replaceChildren(textTable("The chosen plan on each file", ["this plan on", "smaller", "coding error", "energy sent", measured.link ? "on your link" : "pays below"], shown));
}

// What --best and --against were answered.
function drawAnswers() {
  const lines = (measured.best ?? []).map((a) => [a.scope === "all" ? "all inputs" : [a.input, a.kind].filter(Boolean).join(", "), a.plan ?? (a.nearest ? `none; nearest: ${a.nearest}` : "none"), `least ${a.by} with ${a.condition}`,
    write("bytes", a.total?.bytes), write("error", a.total?.total_error), write("time", a.total?.encode_ns), write("time", a.total?.decode_ns)]);
  $("answers-section").hidden = lines.length === 0;
  $("answers").replaceChildren(textTable("Answers to --best", ["best plan of", "plan", "asked", "bytes", "total error", "encode", "decode"], lines));
  const total = measured.against?.total;
  $("against").textContent = total ? `Against ${measured.against.old?.file} (commit ${measured.against.old?.commit ?? "unknown"}): ${total.better} of ${total.rows} rows better, ${total.worse} worse, ${total.mixed ?? 0} mixed, ${total.same} the same; in total ${total.verdict}.` : "";
}
