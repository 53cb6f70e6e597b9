// The table of layers: sorted by any column, filtered by a text and by quick filters, a page of rows at a time.

const LAYER_ROWS = 40;
const ORIGINS = { born: "born here", passed: "passed on", both: "born and passed", none: "none" };
const layerTable = { sort: "index", isDown: false, text: "", quick: "", body: null, filter: null };

const formats = (layer) => [layer.x_format, layer.w_format && `× ${layer.w_format}`, layer.o_format && `→ ${layer.o_format}`].filter(Boolean).join(" ");
const originOf = (layer) => (Object.hasOwn(ORIGINS, layer.verdict) ? ORIGINS[layer.verdict] : layer.verdict);
const clippedClass = (share) => (share >= 0.01 ? "strong" : "");

// `by` is what a column is sorted by, `show` what stands in it, `has` whether the column is worth its place.
// What a decision needs stands on the left.
const LAYER_COLUMNS = [
  { key: "index", title: "#", numeric: true, by: (layer) => layer.index, show: (layer) => layer.index + 1 },
  { key: "name", title: "Layer", by: (layer) => layer.name, show: (layer) => named(layer.name) },
  { key: "op", title: "Op", by: (layer) => layer.op, show: (layer) => [named(layer.op), layer.runs_as === "float" && [" ", badge("float", "warning")]] },
  { key: "sqnr_db", title: "SQNR", hint: "signal to noise against the float model: more is better", numeric: true, by: (layer) => layer.sqnr_db, show: (layer) => decibels(layer.sqnr_db) },
  { key: "verdict", title: "Error", hint: "whether the error is born in the layer or passed on from before", by: originOf, show: (layer) => named(originOf(layer)) },
  { key: "born_db", title: "Born", hint: "signal to noise of the error that the layer makes itself", numeric: true, by: (layer) => layer.born_db, show: (layer) => decibels(layer.born_db) },
  { key: "passed_db", title: "Passed", hint: "signal to noise of the error that the layer hands on", numeric: true, by: (layer) => layer.passed_db, show: (layer) => decibels(layer.passed_db) },
  { key: "clipped", title: "Clipped", hint: "share of values at the ends of the range", numeric: true, by: (layer) => layer.clipped, show: (layer) => el("span", { class: clippedClass(layer.clipped) }, percent(layer.clipped)) },
  { key: "macs", title: "MACs", hint: "multiply-accumulates", numeric: true, by: (layer) => layer.macs, show: (layer) => (layer.macs ? big(layer.macs) : NONE) },
  { key: "bits", title: "Bits", hint: "of input, weights and output", by: (layer) => layer.bits, show: (layer) => named(layer.bits) },
  { key: "formats", title: "Q formats", hint: "bits before and behind the binary point: input × weights → output", by: formats, show: (layer) => named(formats(layer)) },
  { key: "shape", title: "Shape", by: (layer) => layer.shape, show: (layer) => named(layer.shape) },
  { key: "advice", title: "Advice", by: (layer) => layer.advice.length, show: (layer) => layer.advice.length > 0 && named(layer.advice.join(" ")) },
];

const QUICK_FILTERS = {
  float: ["Float", (layer) => layer.runs_as === "float"],
  born: ["Error born here", (layer) => layer.verdict === "born" || layer.verdict === "both"],
  clipped: ["Clipped", (layer) => layer.clipped > 0],
  advice: ["Has advice", (layer) => layer.advice.length > 0 || layer.findings.length > 0],
};

function compareBy(column, isDown) {
  // what is not known comes last, in whichever direction
  const isMissing = (value) => value === null || value === undefined || value === "";
  return (one, other) => {
    const [left, right] = [column.by(one), column.by(other)];
    if (isMissing(left) || isMissing(right)) return isMissing(left) - isMissing(right);
    const order = typeof left === "string" ? left.localeCompare(right, "en", { numeric: true }) : left < right ? -1 : left > right ? 1 : 0;
    return (isDown ? -order : order) || one.index - other.index;
  };
}

function shownLayers(run) {
  const text = layerTable.text.trim().toLowerCase();
  const isMatch = (layer) => [layer.name, layer.path, layer.op, layer.shape, layer.bits, formats(layer), originOf(layer), layer.float_reason, ...layer.advice].some((part) => part.toLowerCase().includes(text));
  const quick = layerTable.quick ? QUICK_FILTERS[layerTable.quick][1] : () => true;
  const column = LAYER_COLUMNS.find(({ key }) => key === layerTable.sort);
  return run.layers.filter((layer) => quick(layer) && isMatch(layer)).sort(compareBy(column, layerTable.isDown));
}

function sortBy(column) {
  // figures are read from the largest down, except signal to noise, where the smallest is the news
  layerTable.isDown = layerTable.sort === column.key ? !layerTable.isDown : ["clipped", "macs", "advice"].includes(column.key);
  layerTable.sort = column.key;
  drawLayerRows(currentRun());
  layerTable.body.querySelector(`th[data-key="${column.key}"] button`)?.focus({ preventScroll: true });
}

function headCell(column) {
  const isSorted = layerTable.sort === column.key;
  const order = isSorted ? (layerTable.isDown ? "descending" : "ascending") : "none";
  return el(
    "th",
    { scope: "col", class: column.numeric && "number", "aria-sort": order, "data-key": column.key },
    button([column.title, el("span", { class: "sort-sign", "aria-hidden": "true" }, isSorted ? (layerTable.isDown ? "▼" : "▲") : "")], () => sortBy(column), { title: column.hint ? `${column.hint}; click to sort` : "click to sort" }),
  );
}

function layerRow(layer, columns) {
  const isSelected = layer.index === state.layer;
  return el(
    "tr",
    { tabindex: 0, class: isSelected && "selected", "aria-selected": String(isSelected), "data-layer": layer.index, onclick: () => chooseLayer(layer.index, { isSeen: true }) },
    columns.map((column) => el("td", { class: `${column.numeric ? "number" : ""} column-${column.key}` }, column.show(layer))),
  );
}

// Arrow keys walk through the rows, Enter selects.
function rowKey(event) {
  const row = event.target.closest("tr[data-layer]");
  if (!row || event.target !== row) return;
  const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling, Home: row.parentElement.firstElementChild, End: row.parentElement.lastElementChild }[event.key];
  if (next) next.focus();
  else if (event.key === "Enter" || event.key === " ") chooseLayer(Number(row.dataset.layer), { isSeen: true });
  else return;
  event.preventDefault();
}

function drawLayerRows(run) {
  const rows = shownLayers(run);
  const columns = LAYER_COLUMNS.filter((column) => ["index", "name"].includes(column.key) || run.layers.some((layer) => ![null, "", 0].includes(column.by(layer))));
  const draw = (part) => el(
    "div",
    { class: "scroll", role: "region", "aria-label": "Layers", onkeydown: rowKey },
    el("table", { class: "layers" }, el("thead", {}, el("tr", {}, columns.map(headCell))), el("tbody", {}, part.map((layer) => layerRow(layer, columns)))),
  );
  const start = Math.max(0, rows.findIndex((layer) => layer.index === state.layer));
  const status = rows.length === run.layers.length ? plural(rows.length, "layer") : `${count(rows.length)} of ${plural(run.layers.length, "layer")}`;
  layerTable.body.replaceChildren(
    el("p", { class: "muted status", role: "status" }, status),
    rows.length ? paged(rows, LAYER_ROWS, draw, { label: "layers", start }) : el("p", { class: "empty" }, "No layer matches. ", button("Show all layers", () => filterLayers(""))),
  );
  for (const pressed of byId("layers").querySelectorAll("[data-quick]")) pressed.setAttribute("aria-pressed", String(pressed.dataset.quick === layerTable.quick));
}

function filterLayers(quick) {
  layerTable.quick = quick;
  if (!quick) layerTable.filter.value = layerTable.text = "";
  drawLayerRows(currentRun());
}

addView({
  drawRun(run) {
    if (!run.layers.length) return showSection("layers", "Layers", null);
    layerTable.filter = el("input", { type: "search", id: "layer-filter", placeholder: "Filter: name, op, format …  ( / )", "aria-label": "Filter the layers", value: layerTable.text, oninput: (event) => {
      layerTable.text = event.target.value;
      drawLayerRows(currentRun());
    } });
    if (layerTable.quick && !run.layers.some(QUICK_FILTERS[layerTable.quick][1])) layerTable.quick = "";
    const quick = Object.entries(QUICK_FILTERS).map(([key, [title, test]]) => {
      const number = run.layers.filter(test).length;
      return number > 0 && button([title, el("span", { class: "muted" }, ` ${number}`)], () => filterLayers(layerTable.quick === key ? "" : key), { "data-quick": key, "aria-pressed": "false" });
    });
    layerTable.body = el("div");
    showSection("layers", "Layers", [
      sectionHead("Layers", "One row per layer, in the order of execution. Click a heading to sort, a row to see the layer."),
      el("div", { class: "filters" }, layerTable.filter, quick),
      layerTable.body,
    ]);
    drawLayerRows(run);
    return undefined;
  },
  drawLayer(run, layer) {
    if (!run.layers.length) return;
    const rows = [...layerTable.body.querySelectorAll("tr[data-layer]")];
    // the selected layer may be on another page, unless a filter hides it
    if (layer && !rows.some((row) => Number(row.dataset.layer) === layer.index) && shownLayers(run).includes(layer)) return void drawLayerRows(run);
    for (const row of rows) {
      const isSelected = Number(row.dataset.layer) === layer?.index;
      row.classList.toggle("selected", isSelected);
      row.setAttribute("aria-selected", String(isSelected));
    }
  },
});
