// The first screen: the verdict and the figures behind it; several runs side by side.

// The best first.
const LEVELS = {
  ready: ["Ready", "✓"],
  attention: ["Needs attention", "!"],
  unknown: ["Not proven", "?"],
  "not ready": ["Not ready", "✕"],
};
// The color of a part: what was not measured is never green.
const PART_KINDS = { ready: "good", attention: "warning", unknown: "warning", "not ready": "bad", "not asked": "neutral" };
const levelClass = (run) => `level-${run.decision.level.replace(" ", "-")}`;
const formText = (form) => (form === "dialect" ? "ONNX with linger’s operators (dialect form)" : `${form} form`);

function partItem(part) {
  return el("li", { class: "part" }, badge(`${part.name}: ${part.answer}`, PART_KINDS[part.level]),
    el("div", { class: "part-text" }, el("span", { class: "part-sentence" }, part.sentence), part.remedy && el("span", { class: "part-remedy" }, `→ ${part.remedy}`)));
}

// What keeps the network from being ready, the gravest first.
function holdingParts(run) {
  const gravity = (part) => Object.keys(LEVELS).indexOf(part.level);
  return run.decision.parts.filter((part) => gravity(part) > 0).sort((one, other) => gravity(other) - gravity(one));
}

function verdictBlock(run) {
  const [word, sign] = LEVELS[run.decision.level];
  const about = [run.file && run.file !== run.name && named(run.file), run.file_bytes > 0 && bytes(run.file_bytes),
    run.form && named(formText(run.form)), run.target && named(`for ${run.target}`),
    run.layers.length > 0 && plural(run.layers.length, "layer")].filter(Boolean);
  return el(
    "article",
    { class: `verdict ${levelClass(run)}` },
    el("span", { class: "verdict-sign", "aria-hidden": "true" }, sign),
    el(
      "div",
      { class: "verdict-text" },
      el("p", { class: "verdict-run" }, named(run.name, "strong"), about.map((part) => [el("span", { class: "dot" }, " · "), part])),
      el("p", { class: "verdict-word" }, word),
      el("h1", { class: "verdict-headline" }, run.decision.headline),
      el("ul", { class: "parts" }, run.decision.parts.map(partItem)),
    ),
  );
}

// A line for each of several runs: the chosen one must not hide that another is worse.
function runLines() {
  if (RUNS.length < 2) return null;
  return el("ul", { class: "run-lines" }, RUNS.map((run, index) => {
    const [word, sign] = LEVELS[run.decision.level];
    const choose = () => {
      chooseRun(index);
      byId("run").value = index;
    };
    return el("li", { class: levelClass(run) }, el("strong", { class: "run-level" }, `${sign} ${word}`), " ", button(named(run.name), choose, { class: "link" }));
  }));
}

function card(target, title, figureText, details, kind = "") {
  // a card leads to its section, where that has something to say
  const isLink = target && !byId(target).hidden;
  return el(
    isLink ? "a" : "div",
    { class: `card ${kind}`, href: isLink ? `#${target}` : null, "data-card": title },
    el("span", { class: "card-title" }, title),
    el("span", { class: "card-figure" }, figureText),
    details.filter(Boolean).map((detail) => el("span", { class: "card-detail" }, detail)),
  );
}

function proofCard(run) {
  const proof = run.proof;
  if (!proof) return card(null, "Proof", "none", ["The file was not compared with anything."], "neutral");
  const text = proof.is_exact ? "0 differ" : proof.differing === 0 ? "outputs differ" : `${count(proof.differing)} differ${proof.differing === 1 ? "s" : ""}`;
  return card("certificate", "Proof", text, [
    proof.is_exact || proof.differing ? `of ${plural(proof.integers, "integer")}` : `${plural(proof.integers, "integer")} equal`,
    proof.compared.length > 0 && `file ${proof.is_exact ? "=" : "≠"} ${proof.compared.map((name) => shortened(name, 24)).join(", ")}`,
  ], proof.is_exact ? "good" : "bad");
}

function qualityFigure(quality) {
  const before = isNumber(quality.before) ? `${figure(quality.before)} → ` : "";
  return el(
    "span",
    { class: "quality" },
    el("span", { class: "card-figure" }, before + figure(quality.after, quality.unit)),
    el("span", { class: "card-detail" }, `${quality.name}${before ? ", float → integer" : ""}`),
    isNumber(quality.plain) && el("span", { class: "card-detail" }, `plain calibration: ${figure(quality.plain, quality.unit)}`),
  );
}

function qualityCard(run) {
  const first = run.quality[0];
  if (!first) return card(null, "Quality", "not measured", ["Nobody has compared the network with its float model."], "wide warning");
  const data = [first.samples && plural(first.samples, "sample"), first.data].filter(Boolean).join(", ");
  const figures = el("span", { class: "qualities" }, run.quality.filter((quality) => !quality.output).slice(0, 4).map(qualityFigure));
  const outputs = run.quality.filter((quality) => quality.output);
  const isOther = run.proof && !run.proof.is_exact;
  return el("div", { class: "card wide", "data-card": "Quality" }, el("span", { class: "card-title" }, data ? `Quality on ${data}` : "Quality"), figures,
    outputs.slice(0, 12).map((quality) => el("span", { class: "card-detail" }, `${shortened(quality.output, 40)}: ${decibels(quality.after)}`)),
    outputs.length > 12 && el("span", { class: "card-detail" }, `and ${plural(outputs.length - 12, "output")} more`),
    isOther && el("span", { class: "card-detail" }, "of the simulation, not of the file"));
}

function sizeCard(run) {
  const floats = run.float_weight_bytes;
  const ratio = isNumber(floats) && run.weight_bytes > 0 ? `${(floats / run.weight_bytes).toFixed(1)} times smaller than float32 (${bytes(floats)})` : "";
  return card("layers", "Weights", bytes(run.weight_bytes), [ratio, run.file_bytes > 0 && `file: ${bytes(run.file_bytes)}`]);
}

function memoryCard(run) {
  if (!run.memory) return card(null, "Working memory", NONE, ["It was not measured."]);
  const needed = run.memory_needed;
  const limit = run.memory.limit_bytes;
  const isOver = isNumber(limit) && needed >= limit;
  return card("memory", "Working memory", bytes(needed), [
    isNumber(run.memory.arena_bytes) && !isNumber(limit) ? "arena of the program in C" : "most tensors alive at one step",
    isNumber(limit) && `${isOver ? "✕ not less than" : "of"} ${bytes(limit)}${run.target ? ` on ${shortened(run.target, 20)}` : ""} (${percent(needed / limit)})`,
  ], isOver ? "bad" : "");
}

function floatCard(run) {
  const floats = run.layers.filter((layer) => layer.runs_as === "float");
  const others = run.float_ops;
  if (floats.length === 0 && others.length > 0) return card("notes", "Stayed float", plural(others.length, "op"), ["without a layer of its own", shortened(others[0], 40)], "warning");
  if (floats.length === 0) return card("layers", "Stayed float", run.layers.length ? "nothing" : NONE, [run.layers.length > 0 && "Every layer computes with integers."], run.layers.length ? "good" : "");
  const made = card("layers", "Stayed float", plural(floats.length, "layer"),
    [others.length > 0 && `and ${plural(others.length, "op")} without a layer`, `${percent(1 - run.integer_share)} of the multiply-accumulates`, floats.slice(0, 2).map((layer) => shortened(layer.name, 26)).join(", ") + (floats.length > 2 ? ", …" : "")], "warning");
  made.addEventListener("click", () => filterLayers("float"));
  return made;
}

function findingsCard(run) {
  const number = (severity) => run.findings.filter((finding) => finding.severity === severity).length;
  const [errors, warnings] = [number("error"), number("warning")];
  const notes = run.findings.length - errors - warnings;
  if (!run.findings.length) return card(null, "Findings", "none", [run.target ? `The check for ${shortened(run.target, 30)} found nothing.` : "No chip was asked."], run.target ? "good" : "");
  const main = errors ? plural(errors, "error") : warnings ? plural(warnings, "warning") : plural(notes, "note");
  return card("findings", "Findings", main, [
    [errors && warnings && plural(warnings, "warning"), (errors || warnings) && notes && plural(notes, "note")].filter(Boolean).join(", "),
    run.target && `of the check for ${shortened(run.target, 30)}`,
  ], errors ? "bad" : warnings ? "warning" : "");
}

const atLeast = (run) => (run.is_lower_bound ? "≥ " : "");

function workCard(run) {
  const heaviest = run.layers.reduce((most, layer) => (layer.macs > (most?.macs ?? 0) ? layer : most), null);
  return card("layers", "Work", run.macs > 0 ? `${atLeast(run)}${big(run.macs)} MACs` : NONE, [
    "multiply-accumulates for one input",
    heaviest && run.macs > 0 && `most in ${shortened(heaviest.name, 26)} (${percent(heaviest.macs / run.macs)})`,
  ]);
}

addView({
  drawRun(run) {
    byId("verdict").replaceChildren(...[runLines(), verdictBlock(run)].filter(Boolean));
    document.title = `${LEVELS[run.decision.level][0]}: ${DATA.title || run.name}`;
  },
});

// Drawn after the sections, because a card leads only to a section that is there.
const cardsView = {
  drawRun(run) {
    byId("cards").replaceChildren(proofCard(run), qualityCard(run), sizeCard(run), workCard(run), memoryCard(run), floatCard(run), findingsCard(run));
  },
};

// Runs side by side.

// Widths of the layers with weights, else of all: input/weights/output, the most frequent first.
function widthsOf(run) {
  const counts = new Map();
  const weighted = run.layers.filter((layer) => layer.weight_bytes > 0 && layer.bits);
  for (const { bits } of weighted.length ? weighted : run.layers) if (bits) counts.set(bits, (counts.get(bits) ?? 0) + 1);
  const widths = [...counts].sort((one, other) => other[1] - one[1]).map(([bits]) => shortened(bits, 12));
  return widths.length ? widths.slice(0, 3).join(", ") + (widths.length > 3 ? ", …" : "") : null;
}

function comparedFigures() {
  const qualities = [...new Set(RUNS.flatMap((run) => run.quality.map((quality) => quality.name)))];
  const ofQuality = (run, name) => run.quality.find((quality) => quality.name === name);
  const number = (run, test) => run.findings.filter(test).length;
  return [
    ["Verdict", (run) => LEVELS[run.decision.level][0]],
    ["Chip", (run) => run.target || null, (name) => named(name)],
    ["Bits", widthsOf],
    ["Integers that differ", (run) => run.proof?.differing, count],
    ...qualities.map((name) => [capital(name), (run) => ofQuality(run, name)?.after, (value) => figure(value, RUNS.map((run) => ofQuality(run, name)).find(Boolean).unit), figure]),
    ["Weights", (run) => run.weight_bytes, bytes],
    ["File", (run) => run.file_bytes, bytes],
    [`Multiply-accumulates${RUNS.some((run) => run.is_lower_bound) ? " (≥)" : ""}`, (run) => run.macs, big],
    ["Working memory", (run) => run.memory_needed, bytes],
    ["Float layers", (run) => run.layers.filter((layer) => layer.runs_as === "float").length, count],
    ["Errors of the check", (run) => number(run, (finding) => finding.severity === "error"), count],
    ["Warnings of the check", (run) => number(run, (finding) => finding.severity === "warning"), count],
  ];
}

function difference(value, base, show) {
  if (!isNumber(value) || !isNumber(base) || !Number.isFinite(value - base) || value === base) return null;
  return el("span", { class: "difference" }, ` ${value > base ? "+" : "−"}${show(Math.abs(value - base))}`);
}

function figuresTable() {
  const rows = comparedFigures().map(([title, get, show = (value) => value, showDifference = show]) => el(
    "tr",
    {},
    el("th", { scope: "row" }, title),
    RUNS.map((run, index) => {
      const value = get(run);
      return el("td", { class: "number" }, value === undefined || value === null ? NONE : show(value), index > 0 && difference(value, get(RUNS[0]), (number) => showDifference(number)));
    }),
  ));
  return table("Figures of the runs", [{ title: "" }, ...RUNS.map((run) => ({ title: named(run.name), numeric: true }))], rows);
}

// Layers are the same where their names are.
function layersOfRuns() {
  const byName = RUNS.map((run) => new Map(run.layers.map((layer) => [layer.name, layer])));
  const shared = RUNS[0].layers.filter((layer) => byName.some((layers, index) => index > 0 && layers.has(layer.name)));
  const rows = shared.map((layer) => ({ layer, figures: byName.map((layers) => layers.get(layer.name)?.sqnr_db) }));
  const change = (row) => Math.max(0, ...row.figures.slice(1).filter(isNumber).map((value) => Math.abs(value - (row.figures[0] ?? NaN))).filter(Number.isFinite));
  return rows.filter((row) => row.figures.some(isNumber)).sort((one, other) => change(other) - change(one));
}

addView({
  drawRun() {
    if (RUNS.length < 2) return showSection("runs", "Runs", null);
    const rows = layersOfRuns();
    const columns = [{ title: "Layer" }, ...RUNS.map((run) => ({ title: named(run.name), numeric: true }))];
    const draw = (part) => table("Signal to noise of the layers", columns, part.map(({ layer, figures }) => el(
      "tr",
      {},
      el("th", { scope: "row" }, named(layer.name)),
      figures.map((value, index) => el("td", { class: "number" }, decibels(value), index > 0 && difference(value, figures[0], (number) => number.toFixed(1)))),
    )));
    return showSection("runs", "Runs side by side", [
      sectionHead("Runs side by side", "The figures of every run; small figures say how much more or less it is than in the first run."),
      figuresTable(),
      rows.length > 0 && el("h3", {}, "Signal to noise of layers with the same name"),
      rows.length > 0 && el("p", { class: "explanation" }, "The layers that changed most come first."),
      rows.length > 0 && paged(rows, 12, draw, { label: "layers" }),
    ].filter(Boolean));
  },
});
