// The table of all rows: sorted by any column, searched, with plans that can be copied.
const PAGE = 200;  // rows shown before “more”
const PRINTED_ROWS = 15;
const table = { column: "bytes", down: false, shown: PAGE };

function shownColumns() {
  const there = COLUMNS.filter(({ name }) => allRows.some((row) => row[name] !== null && row[name] !== undefined));
  const shown = allRows.filter(inScope), varying = (name) => unique(shown.map((row) => row[name])).length > 1;
  if ($("every").checked) return there;
  const usual = there.filter(({ name }) => FIRST_COLUMNS.includes(name) && (!["input", "tensor", "step"].includes(name) || varying(name)));
  return usual.sort((a, b) => FIRST_COLUMNS.indexOf(a.name) - FIRST_COLUMNS.indexOf(b.name));
}

function compareCells(a, b, name) {
  const missing = (x) => x === null || x === undefined;
  if (missing(a[name]) || missing(b[name])) return missing(a[name]) - missing(b[name]);  // last, whatever the direction
  const order = typeof a[name] === "number" ? a[name] - b[name] : String(a[name]).localeCompare(String(b[name]), "en", { numeric: true });
  return table.down ? -order : order;
}

function headCell({ name, title, kind }) {
  const sorted = table.column === name;
  const button = element("button", { type: "button" }, `${title}${sorted ? (table.down ? " ▾" : " ▴") : ""}`);
  button.addEventListener("click", () => {
    table.down = table.column === name ? !table.down : false;
    table.column = name;
    drawTable();
    $("rows").querySelector(`th[data-column="${name}"] button`).focus();
  });
  const cell = element("th", { scope: "col", "data-column": name, class: kind === "text" ? "text" : "", "aria-sort": sorted ? (table.down ? "descending" : "ascending") : "none" }, button);
  if ($("every").checked) cell.append(element("small", {}, name));
  return cell;
}

function planCell(row) {
  const copy = element("button", { type: "button", "aria-label": `Copy the plan ${row.plan}` }, "copy");
  copy.addEventListener("click", async () => {
    await copyText(row.plan);
    copy.textContent = "copied", $("live").textContent = "Plan copied";
    setTimeout(() => copy.textContent = "copy", 1500);
  });
  return element("td", { class: "plan" }, row.preset ? `${row.preset}: ${row.plan}` : row.plan, ...(row.plan === "memcpy" ? [] : [copy]));
}

// Browsers may refuse the clipboard to a page from file://.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", { class: "hidden" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

function bodyCell(row, { name, kind }) {
  if (name === "plan") return planCell(row);
  return element("td", { class: kind === "text" ? "text" : "" }, write(kind, row[name]) + (kind === "time" ? spreadText(row, name) : ""));
}

function drawTable() {
  const words = $("find").value.toLowerCase().split(/\s+/).filter(Boolean), columns = shownColumns();
  const text = (row) => [row.input, row.tensor, row.plan, row.preset, row.verdict].join(" ").toLowerCase();
  const found = allRows.filter((row) => inSelection(row, true) && words.every((word) => text(row).includes(word)))
    .sort((a, b) => compareCells(a, b, table.column));
  const lines = found.slice(0, table.shown).map((row) => element("tr", row.plan === state.plan ? { class: "chosen" } : {}, ...columns.map((c) => bodyCell(row, c))));
  $("rows").replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...columns.map(headCell))), element("tbody", {}, ...lines)));
  $("counted").textContent = `${found.length} of ${allRows.length} rows${found.length > table.shown ? `, the first ${table.shown} are shown` : ""}`;
  $("more").hidden = found.length <= table.shown;
  $("more").textContent = `Show ${Math.min(PAGE * 5, found.length - table.shown)} more rows`;
}

function startTable() {
  $("find").addEventListener("input", () => { table.shown = PAGE; drawTable(); });
  $("every").addEventListener("change", drawTable);
  $("more").addEventListener("click", () => { table.shown += PAGE * 5; drawTable(); });
}
