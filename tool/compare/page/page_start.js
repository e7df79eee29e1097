// What does not depend on a selection, the theme, and the start.
function drawTraining() {
  const model = trained.models[Number($("model").value)];
  $("training").hidden = !model;
  if (!model || !$("training").querySelector("details").open) return;  // a hidden chart has no size
  const { dense } = model, kinds = { torch: ["c8", "rect"], ours: ["c1", "circle"], paper: ["c2", "triangle"] };
  const methods = [...model.methods].sort((a, b) => a.bytes - b.bytes || b.mean - a.mean);
  const here = new Set(plans);
  const items = methods.map((m) => ({
    name: m.plan && here.has(m.plan) ? `${m.title} (on this page, too)` : m.title, plan: here.has(m.plan) ? m.plan : null,
    cells: [[model.metric, `${digits(m.mean)}${m.spread === null ? "" : ` ± ${digits(m.spread, 2)}`}`], ["seeds", String(m.seeds)], ["bytes", write("bytes", m.bytes)], ["of dense", write("share", m.bytes / dense.bytes)],
      ["plan", m.plan ?? "–"]],
  }));
  const at = (y) => [{ x: 0, y }, { x: 1, y }], low = Math.min(...methods.map((m) => m.mean)), high = Math.max(...methods.map((m) => m.mean));
  const x = axis("bytes", "bytes that a rank sends in a step", methods.map((m) => m.bytes));
  const line = (y, dash) => ({ data: at(y).map((p) => ({ x: p.x ? x.max : x.min, y })), items: false, type: "line", radius: 0, hitRadius: 0, borderWidth: dash ? 1 : 1.5, borderDash: dash, borderColor: colour("soft") });
  const config = {
    type: "scatter", plugins: [frontNames],
    data: {
      datasets: [{ data: methods.map((m) => ({ x: m.bytes, y: m.mean })), pointStyle: methods.map((m) => kinds[m.kind][1]), backgroundColor: methods.map((m) => colour(kinds[m.kind][0])),
        borderColor: colour("ground"), borderWidth: 1, radius: 6, hoverRadius: 9, hitRadius: 6, hoverBorderColor: colour("ink") },
      line(dense.mean), line(dense.low, [4, 4]), line(dense.high, [4, 4])],
    },
    options: {
      interaction: { mode: "nearest", intersect: true }, scales: { x, y: axis("score", model.metric, [low, high, dense.low, dense.high]) },
      plugins: { frontNames: { names: methods.map((m, index) => ({ index, text: m.title })) } },
    },
  };
  draw("training-chart", { config, items, height: 380,
    note: `${model.title}, ${model.ranks} ranks, ${model.steps} steps. Line: dense f32, mean; dashed: its lowest and highest seed. Squares: torch's own; circles: DeepReduce; triangles: the paper's plans.` });
}

function definitions(list) {
  return list.flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]);
}

function drawFacts() {
  const m = measured.machine ?? {}, b = measured.build ?? {};
  const date = measured.date ?? measured.written;
  const facts = [["Machine", [m.cpu, m.cores && `${m.cores} cores`, m.os].filter(Boolean).join(", ")], ["Instructions", (m.flags ?? []).join(" ")],
    ["Library", [b.version, b.compiler, b.buildtype].filter(Boolean).join(", ")], ["Commit", measured.commit], [measured.date ? "Measured" : "Written", date], ["Seed", measured.seed],
    ["Timed rounds", measured.repeat ?? (isNumber(measured.seconds) ? `by time, ${measured.seconds} s a plan` : null)], ["Threads", measured.threads], ["Ranks", measured.ranks], ["Link", measured.link ? linkText() : null], ["Rows", allRows.length],
    ["Files", inputs.slice(0, 30).join(", ") + (inputs.length > 30 ? `, and ${inputs.length - 30} more` : "")]];
  $("facts").replaceChildren(...definitions(facts.filter(([, x]) => x !== null && x !== undefined && x !== "").map(([term, x]) => [term, String(x)])));
  const given = inputs.length === 1 ? inputs[0] : `${inputs.length} files`, steps = unique(rows.map((row) => row.step ?? 1)).length;
  $("summary").textContent = [`${plans.length} plans`, given, `${TENSORS.length} tensor${TENSORS.length === 1 ? "" : "s"}`, steps > 1 ? `${steps} steps` : "", m.cpu, `commit ${measured.commit ?? "unknown"}`, date].filter(Boolean).join(" · ");
  const failures = measured.failures ?? [];
  $("failed").textContent = failures.length ? `${failures.length} failed: ${failures.slice(0, 5).map((f) => `${f.plan} on ${[f.input, f.tensor].filter(Boolean).join(" ")}: ${f.error}`).join("; ")}${failures.length > 5 ? "; …" : ""}` : "";
  const there = new Set(allRows.flatMap((row) => Object.keys(row)));
  $("glossary").replaceChildren(...definitions(COLUMNS.filter((c) => there.has(c.name) && c.text).map((c) => [c.name, c.text])));
}

// ---- Theme ----------------------------------------------------------------------------------------------

const darkSystem = matchMedia("(prefers-color-scheme: dark)");
let asked = null;  // "light" or "dark" by the button; else the system decides
try { asked = localStorage.getItem("deepreduce-theme"); } catch { /* a page from file:// may have no storage */ }

function setTheme(theme = asked ?? (darkSystem.matches ? "dark" : "light")) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "Light colours" : "Dark colours";
  Chart.defaults.color = colour("ink");
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
}

function startTheme() {
  $("theme").addEventListener("click", () => {
    asked = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("deepreduce-theme", asked); } catch { /* see above */ }
    setTheme(), update();
  });
  darkSystem.addEventListener("change", () => { setTheme(), update(); });
  // Paper is white and narrow, and has no room for all rows. Charts are drawn before the page is laid out on it.
  const paper = (on) => {
    document.documentElement.classList.toggle("paper", on);
    table.shown = on ? PRINTED_ROWS : PAGE;
    setTheme(on ? "light" : undefined), update();
    for (const { chart } of charts.values()) chart.resize();
  };
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));
}

// ---- Start ----------------------------------------------------------------------------------------------

function start() {
  startTheme(), setTheme(), startTable(), fillScopes();
  const steps = unique(rows.map((row) => row.step ?? 1)).sort((a, b) => a - b), sparsifiers = unique(rows.map((row) => row.sparsify));
  fill($("step"), [["", "the last"], ...steps.map((step) => [String(step), String(step)])]);
  $("step-field").hidden = steps.length < 2;
  fill($("sparsify"), [["", sparsifiers.length > 1 ? `all ${sparsifiers.length}` : sparsifiers[0] ?? "none"], ...(sparsifiers.length > 1 ? sparsifiers.map((s) => [s, s]) : [])]);
  fill($("model"), trained.models.map((model, i) => [String(i), `${model.title}, ${model.ranks} ranks`]));
  $("training-note").textContent = trained.note;
  for (const id of ["scope", "step", "sparsify"]) $(id).addEventListener("change", () => { state[id] = $(id).value; state.asked = null, state.subject = ""; update(); });
  $("plan").addEventListener("change", () => choose($("plan").value));
  $("text").addEventListener("input", () => update());
  $("limit").addEventListener("input", () => { if ($("limit").value !== "") state.limit = Number($("limit").value), state.ownLimit = true, state.asked = null, update(); });
  $("measure").addEventListener("change", () => {
    state.measure = $("measure").value, state.ownLimit = true, state.asked = null;
    state.limit = usualLimit(totals(rows.filter(stepFilter()).filter((row) => inSelection(row))).plans, state.measure, USUAL_CODING_ERROR);
    update();
  });
  $("error").addEventListener("change", () => { state.error = $("error").value; update(); });
  $("subject").addEventListener("change", () => { state.subject = $("subject").value; drawSupport(); });
  $("training").querySelector("details").addEventListener("toggle", drawTraining);
  $("model").addEventListener("change", drawTraining);
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  drawFacts();
  drawAnswers();
  update();
}
start();
