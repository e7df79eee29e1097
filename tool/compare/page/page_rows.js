// Rows of the document: grouped, summed, compared. Nothing here touches the page.
const measured = JSON.parse(document.getElementById("measured").textContent);
const trained = JSON.parse(document.getElementById("trained").textContent);

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const sum = (list, of) => list.reduce((total, x) => total + of(x), 0);
const unique = (list) => [...new Set(list)];

// Map of a plan's stages: "index" to "bloom(fpr=0.01)". Parentheses may hold spaces.
function stages(plan) {
  const found = new Map();
  let depth = 0, word = "";
  for (const c of `${plan} `) {
    depth += c === "(" ? 1 : c === ")" ? -1 : 0;
    if (c !== " " || depth > 0) word += c;
    else if (word) {
      const [, stage, text] = /^(?:(\w+)=)?(.*)$/s.exec(word);
      found.set(stage ?? word, text), word = "";
    }
  }
  return found;
}
const codec = (text) => (text ?? "none").split(/[(+]/)[0];

// Documents of older versions have no total error.
const allRows = measured.rows.filter((row) => isNumber(row.bytes)).map((row) => {
  const found = stages(row.plan);
  return {
    ...row, stages: found, sparsify: found.get("sparsify") ?? "none",
    total_error: row.total_error ?? (isNumber(row.contraction) ? Math.sqrt(row.contraction) : null),
  };
});
// Columns that are newer than this page: by their names and cells.
for (const name of new Set(allRows.flatMap((row) => Object.keys(row)))) {
  const cell = allRows.find((row) => row[name] !== null && row[name] !== undefined)?.[name];
  if (["stages", "sparsify", "samples"].includes(name) || typeof cell === "object" || COLUMNS.some((c) => c.name === name)) continue;
  const kind = typeof cell === "string" ? "text" : name.endsWith("_spread") ? "share" : name.endsWith("_ns") ? "time" : name.endsWith("bytes") ? "bytes" : "error";
  COLUMNS.push({ name, title: name, kind, text: "" });
}
const rows = allRows.filter((row) => row.plan !== "memcpy");
const subjects = measured.subjects ?? [];

const plans = unique(rows.map((row) => row.plan));
const inputs = unique(rows.map((row) => row.input));

// ---- Sums over tensors ----------------------------------------------------------------------------------

const SUMMED = COLUMNS.filter((c) => ["bytes", "time", "count"].includes(c.kind) && !["step", "rounds"].includes(c.name)).map((c) => c.name);
// Energies of a tensor: columns of its row, or facts of its subject.
const facts = new Map(subjects.map((s) => [JSON.stringify([s.input, s.tensor, s.sparsify]), s]));
function energyOf(name) {
  const of = (row, way) => facts.get(JSON.stringify([row.input, row.tensor, way]))?.[name];
  const way = (row) => `sparsify=${row.sparsify}`, fed = (row) => `${way(row)} feedback=${row.stages.get("feedback")}`;
  return (row) => row[name] ?? of(row, fed(row)) ?? of(row, way(row));
}

function mean(list, name, weight, power) {
  const weights = sum(list, weight);
  if (!list.every((row) => isNumber(row[name])) || !isNumber(weights)) return null;
  return weights > 0 ? (sum(list, (row) => weight(row) * row[name] ** power) / weights) ** (1 / power) : 0;
}

const COMPUTING = ["sparsify_ns", "encode_ns", "merge_ns"];
const inCommon = (list, name) => list.every((row) => row[name] === list[0][name]) ? list[0][name] : null;

// Of tensors that are exchanged one after the other, as totals.cpp has it; `all` has the sums.
function verdictOfSums(all, list) {
  const known = (row, time) => isNumber(row[time]) && (isNumber(row[`${time}_spread`]) || row[time] === 0);
  if (![all.step_ns, all.dense_step_ns, all.bf16_step_ns].every(isNumber) || !COMPUTING.every((time) => list.every((row) => known(row, time))))
    return inCommon(list, "verdict");
  const side = sum(COMPUTING, (time) => Math.hypot(...list.map((row) => (row[`${time}_spread`] ?? 0) * row[time])) / 2);
  const dense = Math.min(all.dense_step_ns, all.bf16_step_ns);
  return all.step_ns + side < dense ? "pays" : all.step_ns - side > dense ? "slower" : "even";
}

// What a step sends less than a dense ring, of a row that pays at no speed, so at most 0; NaN: unknown.
function savedBits(row, name) {
  const width = { f32: name === "pays_below" ? 4 : 2, f16: 2, bf16: 2 }[row.dtype], ranks = row.from ? NaN : measured.ranks ?? NaN;
  const factors = row.stages.has("transform") && codec(row.stages.get("transform")) !== "dct", dense = 2 * width * row.d / ranks;
  return Math.min(0, 8e9 * (ranks - 1) * (dense - (factors ? 2 * row.bytes / ranks : row.bytes + 256)));
}
// Of gathers: the bits that all save by the computing of all. Of another exchange the least rate, below which all pay.
function paysBelow(list, name) {
  const common = inCommon(list, name), exchange = list[0].stages.get("exchange");
  if (!list.every((row) => isNumber(row[name]) && row.stages.get("exchange") === exchange)) return common;
  if (exchange) return list.every((row) => row[name] > 0) ? Math.min(...list.map((row) => row[name])) : common;
  const computing = (row) => sum(COMPUTING, (time) => row[time] ?? 0), all = sum(list, computing);
  const saved = sum(list, (row) => row[name] > 0 ? row[name] * computing(row) : savedBits(row, name));
  return Number.isNaN(saved) ? common : all > 0 ? Math.max(0, saved) / all : null;
}

// A plan over several tensors: bytes and times add up, errors as energies do.
function total(list) {
  if (list.length === 1) return { ...list[0], parts: list };
  const all = { plan: list[0].plan, preset: list[0].preset, stages: list[0].stages, sparsify: list[0].sparsify, parts: list };
  for (const name of SUMMED) all[name] = list.every((row) => isNumber(row[name])) ? sum(list, (row) => row[name]) : null;
  all.relative_volume = all.bytes / (4 * all.d);
  all.index_bits_per_nonzero = all.r ? 8 * all.index_bytes / all.r : null;
  all.value_bits_per_nonzero = all.r ? 8 * all.value_bytes / all.r : null;
  all.total_error = mean(list, "total_error", energyOf("gradient_energy"), 2);
  all.relative_l2_error = mean(list, "relative_l2_error", energyOf("kept_energy"), 2);
  all.energy_recall = mean(list, "energy_recall", energyOf("gradient_energy"), 1);
  all.index_recall = mean(list, "index_recall", (row) => row.r, 1);
  all.verdict = verdictOfSums(all, list);
  for (const name of ["pays_below", "pays_below_bf16"]) all[name] = paysBelow(list, name);
  return all;
}

// {plans: [a total per plan], tensors: number of tensors, partial: plans that lack some of them}
function totals(list) {
  const groups = new Map(), tensors = new Set();
  for (const row of list) {
    tensors.add(JSON.stringify([row.input, row.tensor]));
    groups.set(row.plan, [...(groups.get(row.plan) ?? []), row]);
  }
  const whole = [...groups.values()].filter((group) => group.length === tensors.size);
  return { plans: whole.map(total), tensors: tensors.size, partial: groups.size - whole.length };
}

// Of plan books: each tensor has a plan of its own, so that the rows of no plan add up to them.
const bookTotals = (measured.totals ?? []).filter(({ plan }) => plan.startsWith("book ")).map((all) => ({
  ...all, stages: new Map(), sparsify: "none", parts: rows.filter((row) => !row.from && row.input === all.input && row.step === all.step),
}));

// ---- Comparison -----------------------------------------------------------------------------------------

const callTime = (row) => isNumber(row.encode_ns) && isNumber(row.decode_ns) ? row.encode_ns + row.decode_ns : null;

// Of points [{x, y}] those that no other beats in both, by x.
function paretoFront(points) {
  const front = [];
  for (const point of [...points].sort((a, b) => a.x - b.x || a.y - b.y))
    if (!front.length || point.y < front.at(-1).y) front.push(point);
  return front;
}

// The plan of fewest bytes with an error of at most this; null if there is none.
const best = (list, name, limit) => list.filter((row) => isNumber(row[name]) && row[name] <= limit)
  .reduce((least, row) => !least || row.bytes < least.bytes ? row : least, null);

// `usual`, if a plan has no more error; else a tenth more than the least one, rounded up to two digits: room for plans that
// lose hardly more than the best.
function usualLimit(list, name, usual) {
  const least = Math.min(...list.map((row) => row[name]).filter(isNumber));
  if (!Number.isFinite(least) || least <= usual) return usual;
  const unit = 10 ** (Math.floor(Math.log10(1.1 * least)) - 1);
  const limit = Number((Math.ceil(1.1 * least / unit - 1e-9) * unit).toPrecision(2));
  return least < 1 ? Math.min(1, limit) : limit;  // 1: sending nothing
}

// How many elements to send is a question of training, not of coding. So plans are compared by coding error within one
// sparsifier: Top-1 %, which the field uses most, or the one between the others.
function usualSparsifier(list) {
  const sizes = new Map();
  for (const row of list) if (row.sparsify !== "none") sizes.set(row.sparsify, Math.min(sizes.get(row.sparsify) ?? Infinity, row.bytes));
  if (sizes.has("topr(ratio=0.01)")) return "topr(ratio=0.01)";
  const bySize = [...sizes].sort((a, b) => a[1] - b[1]);
  return bySize[Math.floor((bySize.length - 1) / 2)]?.[0] ?? "none";
}

// Columns of a total or a row, as [heading, text]: what a point says of itself.
function describe(row) {
  const names = ["bytes", "relative_volume", "total_error", "relative_l2_error", "energy_recall", "index_bits_per_nonzero",
    "value_bits_per_nonzero", "sparsify_ns", "encode_ns", "decode_ns", "merge_ns", "step_ns", "verdict", "pays_below_bf16", "pays_below", "choice"];
  const cells = [];
  for (const { name, title, kind } of names.map((name) => COLUMNS.find((c) => c.name === name))) {
    if (row[name] === null || row[name] === undefined) continue;
    cells.push([title, write(kind, row[name]) + (kind === "bits" ? " bits a nonzero" : "") + spreadText(row, name)]);
  }
  return cells;
}
