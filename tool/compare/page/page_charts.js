// Charts: one item a mark or bar, with the cells that its tip, its table and its announcement say.
const $ = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const charts = new Map();  // id of a figure: {chart, items, at: the item that the keyboard is on}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// A table of text: heads and rows of strings; the first column is a row's name.
function textTable(caption, heads, lines) {
  const isText = (cell) => typeof cell !== "string" || !/^[-–×\d]/.test(cell), texts = heads.map((_, i) => !i || lines.some((line) => isText(line[i]) && line[i] !== "never"));
  const cells = (line) => line.map((cell, i) => element(i ? "td" : "th", i ? { class: texts[i] ? "text" : "" } : { scope: "row", class: "text" }, cell));
  return element("table", {}, element("caption", { class: "hidden" }, caption),
    element("thead", {}, element("tr", {}, ...heads.map((head, i) => element("th", { scope: "col", class: texts[i] ? "text" : "" }, head)))),
    element("tbody", {}, ...lines.map((line) => element("tr", {}, ...cells(line)))));
}

// ---- A figure -------------------------------------------------------------------------------------------

function prepare(figure, title) {
  if (figure.querySelector(".canvas")) return;
  const canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "chart" });
  canvas.setAttribute("aria-label", `${title}. Left and right arrow keys go through its marks, Enter chooses a plan.`);
  canvas.addEventListener("keydown", (event) => onKey(figure.id, event));
  canvas.addEventListener("blur", () => point(figure.id, -1));
  const caption = figure.querySelector("figcaption");
  caption.append(element("small"));
  figure.append(element("p", { class: "empty" }), element("div", { class: "canvas" }, canvas, element("div", { class: "tip", hidden: "", "aria-hidden": "true" })),
    element("details", {}, element("summary", {}, "Table of this chart"), element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${title}` })));
}

// items: [{name, plan, cells: [[heading, text]]}], as many as dataset 0 has marks. note: under the caption. empty: in place
// of a chart without items.
function draw(id, { config, items, note = "", empty = "", height = 320 }) {
  const figure = $(id), title = figure.querySelector("figcaption").firstChild.textContent;
  prepare(figure, title);
  charts.get(id)?.chart.destroy();
  charts.delete(id);
  figure.querySelector("small").textContent = note;
  figure.querySelector(".empty").textContent = empty;
  figure.querySelector(".empty").hidden = items.length > 0;
  figure.querySelector(".tip").hidden = true;
  for (const part of figure.querySelectorAll(".canvas, details")) part.hidden = items.length === 0;
  if (!items.length) return;
  const box = figure.querySelector(".canvas");
  box.style.height = `${onPaper() ? Math.round(0.75 * height) : height}px`;
  const whole = {
    ...config, options: {
      ...config.options, responsive: true, maintainAspectRatio: false, animation: false, layout: { padding: { right: 20 } },  // half of the last mark's text
      onClick: (event, active) => active.length && items[active[0].index]?.plan && choose(items[active[0].index].plan),
      plugins: { legend: { display: false }, ...config.options.plugins, tooltip: { enabled: false, external: ({ tooltip }) => showTip(id, tooltip) } },
    },
  };
  charts.set(id, { chart: new Chart(box.querySelector("canvas"), whole), items, at: -1 });
  fillTable(figure, title, items);
}

function fillTable(figure, title, items) {
  const heads = unique(items.flatMap((item) => item.cells.map(([head]) => head)));
  const lines = items.map((item) => [item.name, ...heads.map((head) => item.cells.find((cell) => cell[0] === head)?.[1] ?? "–")]);
  figure.querySelector("details .scroll").replaceChildren(textTable(title, [items[0].plan ? "plan" : "", ...heads], lines));
}

// ---- Tips and the keyboard ------------------------------------------------------------------------------

function showTip(id, tooltip) {
  const tip = $(id).querySelector(".tip"), shown = charts.get(id);
  tip.hidden = !shown || tooltip.opacity === 0 || !tooltip.dataPoints?.length;
  if (tip.hidden) return;
  const indices = unique(tooltip.dataPoints.map((p) => p.dataIndex)), item = shown.items[indices[0]];
  tip.replaceChildren(element("strong", { class: "plan" }, item.name));
  tip.append(element("table", {}, ...item.cells.map(([head, text]) => element("tr", {}, element("th", {}, head), element("td", {}, text)))));
  if (indices.length > 1) tip.append(element("div", { class: "soft" }, `and ${indices.length - 1} more at this place`));
  const { width } = shown.chart, left = tooltip.caretX + 14;
  tip.style.left = `${Math.max(0, left + tip.offsetWidth > width ? Math.min(tooltip.caretX - tip.offsetWidth - 14, width - tip.offsetWidth) : left)}px`;
  tip.style.top = `${Math.max(0, Math.min(tooltip.caretY + 10, shown.chart.height - tip.offsetHeight))}px`;
}

// Puts the mark `at` (-1: none) under the keyboard, shows its tip and says it.
function point(id, at) {
  const shown = charts.get(id);
  if (!shown || (at < 0 && shown.at < 0)) return;
  shown.at = at;
  const { chart, items } = shown;
  const marks = at < 0 ? [] : chart.data.datasets.flatMap((set, datasetIndex) => set.items === false || chart.getDatasetMeta(datasetIndex).data.length <= at ? [] : [{ datasetIndex, index: at }]);
  const place = marks.length ? chart.getDatasetMeta(marks.at(-1).datasetIndex).data[at].tooltipPosition(true) : { x: 0, y: 0 };
  chart.setActiveElements(marks);
  chart.tooltip.setActiveElements(marks, place);
  chart.update();
  if (at >= 0) $("live").textContent = `${at + 1} of ${items.length}: ${items[at].name}. ${items[at].cells.map((cell) => cell.join(" ")).join(", ")}`;
}

function onKey(id, event) {
  const { items, at } = charts.get(id) ?? { items: [] };
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
  if (to !== undefined && items.length) point(id, Math.min(Math.max(to, 0), items.length - 1));
  else if (event.key === "Escape") point(id, -1);
  else if (event.key === "Enter" && items[at]?.plan) choose(items[at].plan), $(id).querySelector("canvas").focus(), point(id, at);
  else return;
  event.preventDefault();
}

// ---- Axes and marks -------------------------------------------------------------------------------------

function axis(kind, title, values = [], extra = {}) {
  // Errors against the dense gradient are shares of 1.
  const low = Math.min(...values), high = Math.max(...values), logarithmic = low > 0 && high / low > 3 && kind !== "share of 1";
  const decade = (v) => Math.floor(Math.log10(v) + 1e-9), lead = (v) => Number((v / 10 ** decade(v)).toFixed(6));
  // As many marks of a decade as there is room for; if there is none, those of some decades.
  const named = (scale, v) => {
    const room = (scale.isHorizontal() ? scale.width : scale.height) / Math.log10(scale.max / scale.min) / (scale.isHorizontal() ? 62 : 24);
    const leads = room > 1 / 0.3 ? [1, 2, 5] : room > 1 / 0.47 ? [1, 3] : [1];
    return leads.includes(lead(v)) && decade(v) % Math.ceil(1 / room) === 0;
  };
  // Errors that are nearly the same look so.
  const base = kind !== "score" && low < high / 2 ? 0 : low, margin = Math.max(0.12 * (high - base || high || 1), kind === "score" ? 0 : 0.02 * high);
  const room = !values.length ? {} : logarithmic ? { min: low / 1.18, max: high * 1.25 } : { min: base ? base - margin : low < 0.03 * high ? -0.03 * high : 0, max: high + margin };
  const places = (ticks) => Math.max(0, Math.ceil(-Math.log10(Math.abs(ticks[1]?.value - ticks[0]?.value) || 1) - 1e-6));
  const text = (v, ticks) => !logarithmic && ["error", "share of 1", "score"].includes(kind) ? v.toFixed(places(ticks)) : write(kind, v);
  return {
    type: logarithmic ? "logarithmic" : "linear", ...room,
    title: { display: true, text: title, color: colour("soft") },
    grid: { color: colour("grid"), borderColor: colour("line") },
    ticks: { color: colour("soft"), maxRotation: 0, autoSkipPadding: 8, autoSkip: !logarithmic, includeBounds: false,
      callback(v, _, ticks) { return logarithmic && !named(this, v) ? "" : text(v, ticks); } },
    ...extra,
  };
}

// Names beside the marks on the front, placed so that they overlap neither names nor marks.
const frontNames = {
  id: "frontNames",
  afterDatasetsDraw(chart, _, { names = [] }) {
    const { ctx, chartArea: area } = chart, taken = chart.getDatasetMeta(0).data.map((mark) => [mark.x - 6, mark.y - 6, mark.x + 6, mark.y + 6]);
    ctx.save();
    ctx.font = `12px ${Chart.defaults.font.family}`, ctx.fillStyle = colour("ink"), ctx.textBaseline = "middle";
    for (const { index, text } of names) {
      const mark = chart.getDatasetMeta(0).data[index], width = ctx.measureText(text).width;
      for (const [dx, dy] of [[9, -10], [9, 10], [-width - 9, 10], [-width - 9, -10], [9, -22], [9, 22], [-width - 9, 22], [-width - 9, -22], [-width / 2, -16], [-width / 2, 16], [-width / 2, -28], [-width / 2, 28]]) {
        const box = [mark.x + dx, mark.y + dy - 7, mark.x + dx + width, mark.y + dy + 7];
        if (box[0] < area.left || box[2] > area.right || box[1] < area.top || box[3] > area.bottom) continue;
        if (taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
        ctx.fillText(text, box[0], mark.y + dy);
        taken.push(box);
        break;
      }
    }
    ctx.restore();
  },
};

// points: [{x, y, row}]. Named: the chosen plan, then the front. Dataset 0: the points. 1: the front. 2: a ring around the chosen plan.
function scatter(id, points, x, y, notes) {
  points = [...points].sort((a, b) => a.x - b.x || a.y - b.y);
  const front = paretoFront(points), chosen = points.filter((p) => p.row.plan === state.plan);
  const styles = points.map((p) => markStyle(codecOf(p.row, "index"), codecOf(p.row, "value"))), styled = (name) => styles.map((style) => style[name]);
  const config = {
    type: "scatter", plugins: [frontNames],
    data: {
      datasets: [
        { data: points, pointStyle: styled("pointStyle"), rotation: styled("rotation"), radius: 5.5, hoverRadius: 8, hitRadius: 6, borderWidth: styled("borderWidth"), hoverBorderWidth: 2.5,
          backgroundColor: styled("backgroundColor"), borderColor: styled("borderColor"), hoverBorderColor: colour("ink") },
        { data: front, items: false, type: "line", stepped: "before", radius: 0, hitRadius: 0, hoverRadius: 0, borderWidth: 1.5, borderColor: colour("soft"), order: 2 },
        { data: chosen, items: false, radius: 10, hoverRadius: 10, hitRadius: 0, borderWidth: 2, borderColor: colour("accent"), backgroundColor: "transparent", order: 1 },
      ],
    },
    options: {
      scales: { x: axis(x.kind, x.title, points.map((p) => p.x)), y: axis(y.kind, y.title, points.map((p) => p.y)) },
      interaction: { mode: "nearest", intersect: true },
      plugins: { frontNames: { names: unique([...chosen, ...front]).map((p) => ({ index: points.indexOf(p), text: cut(shortName(p.row.plan), 40) })) } },
    },
  };
  draw(id, { config, items: points.map(({ row }) => ({ name: row.plan, plan: row.plan, cells: describe(row) })), height: 380, ...notes });
}

function legend(display) {
  const labels = (chart) => chart.data.datasets.map(({ label, backgroundColor, pointStyle }) => ({ text: label, fillStyle: backgroundColor, strokeStyle: backgroundColor, lineWidth: 0, pointStyle: pointStyle ?? "rect", fontColor: colour("ink") }));
  return { display, align: "start", onClick: () => {}, labels: { boxWidth: 9, boxHeight: 9, usePointStyle: true, generateLabels: labels } };
}

// The vertical axis of items: their short names, the chosen plan's in bold. On a narrow chart, or where
// names are long, one that needs more than that is written in two lines, each cut to it.
function nameAxis(items) {
  const chosen = (index) => items[index]?.plan && items[index].plan === state.plan;
  const width = (text, chart) => (chart.ctx.save(), chart.ctx.font = `bold 11px ${Chart.defaults.font.family}`, chart.ctx.measureText(text).width + (chart.ctx.restore(), 0));
  const fitting = (text, chart) => {
    let length = text.length;
    while (length > 8 && width(cut(text, length), chart) > 0.4 * chart.width) --length;
    return cut(text, length);
  };
  const lines = (text, chart) => {
    const at = text.indexOf(" ");
    return at < 0 || !tall(items) || width(text, chart) <= 0.4 * chart.width ? fitting(text, chart) : [fitting(text.slice(0, at), chart), fitting(text.slice(at + 1), chart)];
  };
  return { stacked: true, grid: { display: false }, ticks: { color: colour("ink"), autoSkip: false, font: ({ index }) => ({ size: narrow() ? 9.5 : tall(items) ? 11 : 12, lineHeight: 1.1, weight: chosen(index) ? "bold" : "normal" }),
    callback(value) { return lines(this.getLabelForValue(value), this.chart); } } };
}
const onPaper = () => document.documentElement.classList.contains("paper");
const narrow = () => innerWidth < 640 || onPaper();
const tall = (items) => narrow() || items.some((item) => (item.short ?? item.name).length > 36);
const barsHeight = (items) => 90 + (tall(items) ? 30 : 24) * items.length;

// Horizontal bars. parts: [{title, colour, of}]; items as in draw, with `row`.
function bars(id, items, parts, kind, title, notes) {
  const config = {
    type: "bar",
    data: {
      labels: items.map((item) => item.short ?? item.name),
      datasets: parts.map((part) => ({ label: part.title, data: items.map((item) => part.of(item.row)), backgroundColor: part.colour, stack: "one",
        borderColor: ({ dataIndex }) => items[dataIndex]?.plan && items[dataIndex].plan === state.plan ? colour("ink") : colour("ground"), borderWidth: 1, maxBarThickness: 18 })),
    },
    options: {
      indexAxis: "y", interaction: { mode: "index", axis: "y", intersect: false },
      scales: {
        x: { ...axis(kind, title), type: "linear", stacked: true, beginAtZero: true },
        y: nameAxis(items),
      },
      plugins: { legend: legend(parts.length > 1) },
    },
  };
  draw(id, { config, items, height: barsHeight(items), ...notes });
}

// A line for each item, up to `whole`, and on it a mark for each part, on a logarithmic axis. Parts as in bars.
function dots(id, items, whole, parts, kind, title, notes) {
  const positive = (x) => x > 0 ? x : null, values = [whole, ...parts].flatMap((part) => items.map((item) => part.of(item.row))).filter((x) => x > 0);
  const config = {
    type: "bar",
    data: {
      labels: items.map((item) => item.short ?? item.name),
      datasets: [
        { label: whole.title, data: items.map((item) => positive(whole.of(item.row))), backgroundColor: whole.colour, barThickness: 3, order: 2 },
        ...parts.map((part) => ({ label: part.title, type: "line", showLine: false, data: items.map((item) => positive(part.of(item.row))), backgroundColor: part.colour, borderColor: colour("ground"), borderWidth: 1,
          pointRadius: 5, pointHoverRadius: 7, pointStyle: part.shape, order: 1 }))],
    },
    options: {
      indexAxis: "y", interaction: { mode: "index", axis: "y", intersect: false },
      scales: { x: { ...axis(kind, title, values), ...(values.length ? { type: "logarithmic" } : {}), stacked: false }, y: { ...nameAxis(items), stacked: false, offset: true } },
      plugins: { legend: legend(true) },
    },
  };
  draw(id, { config, items, height: barsHeight(items), ...notes });
}

// Bars of counts over bins of powers of two, and beside them a line of the counts that something else would give.
function histogram(id, items, title, line, notes) {
  const config = {
    type: "bar",
    data: {
      labels: items.map((item) => item.short),
      datasets: [{ label: "counted", data: items.map((item) => item.count), backgroundColor: colour("c1"), categoryPercentage: 1, barPercentage: 0.92 },
        ...(line ? [{ label: line.title, items: false, type: "line", order: -1, data: items.map((item) => item.expected), borderColor: colour("c2"), backgroundColor: colour("c2"), borderWidth: 2, pointRadius: 2, pointHitRadius: 0 }] : [])],
    },
    options: {
      interaction: { mode: "index", intersect: false },
      scales: { x: { ...axis("count", title), type: "category", ticks: { color: colour("soft"), maxRotation: 0, autoSkipPadding: 6 }, grid: { display: false } }, y: { ...axis("count", "positions"), beginAtZero: true } },
      plugins: { legend: legend(Boolean(line)) },
    },
  };
  draw(id, { config, items, height: 280, ...notes });
}
