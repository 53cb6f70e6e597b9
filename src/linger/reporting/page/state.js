// What is shown: the runs, which of them, which layer, which theme. The choice lives in the address behind `#`, so that a link
// leads to a layer; where an address cannot be changed, as in a notebook, it lives in memory.

const DATA = JSON.parse(byId("data").textContent);
const RUNS = DATA.runs.map(prepared);
const state = { run: 0, layer: null, tensor: null, theme: "" };
const views = [];

// JSON has no infinity and no NaN: such figures are texts. Only figures are turned back, for a layer may be called "inf".
function unbounded(owner, keys) {
  const meant = { inf: Infinity, "-inf": -Infinity, nan: null };
  for (const key of keys) if (typeof owner[key] === "string" && owner[key] in meant) owner[key] = meant[owner[key]];
}

function prepared(run) {
  run.layers.forEach((layer, index) => {
    layer.index = index;
    layer.findings = [];
    unbounded(layer, ["sqnr_db", "born_db", "passed_db"]);
  });
  run.tensors.forEach((tensor) => unbounded(tensor, ["sqnr_db", "low", "high"]));
  run.sensitivity.forEach((row) => unbounded(row, ["sqnr_db"]));
  run.quality.forEach((quality) => unbounded(quality, ["before", "after", "plain"]));
  (run.tuning?.steps ?? []).forEach((step) => unbounded(step, ["before_db", "after_db", "before_metric", "after_metric"]));
  run.findings.forEach((finding) => run.layers[finding.layer]?.findings.push(finding));
  // a Map: a tensor may be called __proto__
  run.tensorOf = new Map(run.tensors.map((tensor) => [tensor.name, tensor]));
  return run;
}

const currentRun = () => RUNS[state.run];
const currentLayer = () => (state.layer === null ? null : currentRun().layers[state.layer] ?? null);

// A view has drawRun(run), called when another run is shown, and drawLayer(run, layer), called when another layer is.
const addView = (view) => views.push(view);

function drawRun() {
  for (const view of views) view.drawRun?.(currentRun());
  drawLayer();
}

function drawLayer() {
  for (const view of views) view.drawLayer?.(currentRun(), currentLayer());
}

function chooseRun(index) {
  // the same layer in the other run, where there is one
  const name = currentLayer()?.name;
  state.run = index;
  const same = RUNS[index].layers.findIndex((layer) => layer.name === name);
  state.layer = name !== undefined && same >= 0 ? same : null;
  state.tensor = null;
  writeAddress();
  drawRun();
}

function chooseLayer(index, { isSeen = false } = {}) {
  state.layer = index;
  state.tensor = null;
  writeAddress();
  drawLayer();
  const layer = currentLayer();
  announce(layer ? `Layer ${layer.index + 1}, ${layer.name}, is selected.` : "No layer is selected.");
  // the panel may be far from what was clicked
  const { top, bottom } = byId("panel").getBoundingClientRect();
  if (layer && isSeen && (bottom < 160 || top > innerHeight - 160)) byId("panel").scrollIntoView({ block: "start" });
}

function writeAddress() {
  const parts = new URLSearchParams();
  if (state.run) parts.set("run", state.run + 1);
  if (state.layer !== null) parts.set("layer", state.layer + 1);
  if (state.theme) parts.set("theme", state.theme);
  try {
    history.replaceState(null, "", `#${parts}`);
  } catch {
    // an address that may not be changed
  }
}

const numberOf = (text, length) => (/^\d{1,6}$/.test(text ?? "") && Number(text) >= 1 && Number(text) <= length ? Number(text) - 1 : null);

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  state.run = numberOf(parts.get("run"), RUNS.length) ?? 0;
  state.layer = numberOf(parts.get("layer"), currentRun().layers.length);
  state.theme = ["light", "dark"].includes(parts.get("theme")) ? parts.get("theme") : "";
  applyTheme();
}

const isDark = () => (state.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function applyTheme() {
  if (state.theme) document.documentElement.dataset.theme = state.theme;
  else delete document.documentElement.dataset.theme;
}

function turnTheme() {
  state.theme = isDark() ? "light" : "dark";
  applyTheme();
  writeAddress();
}
