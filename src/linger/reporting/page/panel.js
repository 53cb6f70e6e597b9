// The selected layer: all its figures, what helps, and the histograms of its tensors.

// What to look at first, where nobody has chosen a layer.
function suggestions(run) {
  const least = (key) => run.layers.filter((layer) => Number.isFinite(layer[key])).sort((one, other) => one[key] - other[key])[0];
  const most = (key) => run.layers.filter((layer) => layer[key] > 0).sort((one, other) => other[key] - one[key])[0];
  const worst = run.findings.find((finding) => run.layers[finding.layer]);
  const limits = [
    [run.layers.find((layer) => layer.runs_as === "float"), () => "stayed float"],
    [worst && run.layers[worst.layer], () => `the check says: ${worst.reason}`],
  ];
  const isFitting = holdingParts(run)[0]?.name !== "fits";
  const found = [
    ...(isFitting ? [] : limits),
    [least("born_db"), (layer) => `most error of its own (${decibels(layer.born_db)})`],
    [least("sqnr_db"), (layer) => `lowest signal to noise (${decibels(layer.sqnr_db)})`],
    [most("clipped"), (layer) => `most values clipped (${percent(layer.clipped)})`],
    [most("macs"), (layer) => `most work (${big(layer.macs)} MACs)`],
    ...(isFitting ? limits : []),
  ];
  const reasons = new Map();
  for (const [layer, why] of found) if (layer) reasons.set(layer, [...(reasons.get(layer) ?? []), why(layer)]);
  return [...reasons];
}

function emptyPanel(run) {
  const rows = suggestions(run).map(([layer, reasons]) => el(
    "li",
    {},
    button([named(layer.name, "strong"), el("span", { class: "muted clamp" }, reasons.join("; "))], () => chooseLayer(layer.index), { class: "suggestion" }),
  ));
  return [
    el("h2", {}, "Where to look first"),
    el("ul", { class: "parts" }, holdingParts(run).map(partItem)),
    el("p", { class: "explanation" }, "Choose a layer in the graph or in the table to see its figures and the values of its tensors."),
    rows.length > 0 && el("ul", { class: "suggestions" }, rows),
  ];
}

const RUNS_AS = { integer: ["integers", "good"], float: ["floating point", "warning"], moves: ["only moves numbers", "neutral"] };

function layerFacts(run, layer) {
  const [word, kind] = Object.hasOwn(RUNS_AS, layer.runs_as) ? RUNS_AS[layer.runs_as] : [layer.runs_as, "neutral"];
  const share = (value) => (run.macs > 0 && value > 0 ? ` (${percent(value / run.macs)} of all)` : "");
  return definitions([
    ["Runs on", badge(word, kind)],
    layer.path && layer.path !== layer.name && ["Module", named(layer.path)],
    ["Output shape", layer.shape && named(layer.shape)],
    ["Bits", layer.bits && named(layer.bits)],
    ["Q formats", formats(layer) && named(formats(layer))],
    ["Clipped", isNumber(layer.clipped) ? percent(layer.clipped) : ""],
    ["MACs", layer.macs > 0 ? `${count(layer.macs)}${share(layer.macs)}` : ""],
    ["Weights", layer.weight_bytes > 0 ? bytes(layer.weight_bytes) : ""],
    ["Memory alive", layer.live_bytes > 0 ? bytes(layer.live_bytes) : ""],
    ["Part of the noise", isNumber(layer.noise_share) ? `${percent(layer.noise_share)} of that at the output` : ""],
    ["Why it is float", layer.float_reason && el("span", { class: "long" }, layer.float_reason)],
  ]);
}

// Longer bars are better: 60 dB is as good as exact for any purpose.
function errorBars(layer) {
  const rows = [["Signal to noise", layer.sqnr_db], ["of its own error", layer.born_db], ["of what it passes on", layer.passed_db]].filter(([, value]) => isNumber(value));
  if (!rows.length) return null;
  const origin = originOf(layer);
  return [
    el("h3", {}, "Error against the float model", origin && el("span", { class: "tag name" }, origin)),
    el("div", { class: "bars" }, rows.map(([title, value]) => [el("span", {}, title), meter(value / 60), el("span", { class: "number" }, decibels(value))])),
  ];
}

function sentences(title, texts) {
  return texts.length > 0 && [el("h3", {}, title), el("ul", { class: "sentences" }, texts.slice(0, 12).map((text) => el("li", {}, text)))];
}

function tensorsOf(run, layer) {
  const names = [...new Set([...layer.outputs, ...layer.inputs])];
  return names.map((name) => run.tensorOf.get(name)).filter(Boolean);
}

const roleOf = (layer, tensor) => (layer.outputs.includes(tensor.name) ? "output" : ["weight", "bias"].includes(tensor.role) ? tensor.role : "input");

function tensorPart(run, layer) {
  const tensors = tensorsOf(run, layer).slice(0, 60);
  if (!tensors.length) return null;
  const chosen = tensors.find((tensor) => tensor.name === state.tensor) ?? tensors[0];
  const choice = el("select", { id: "tensor", "aria-label": "Tensor", onchange: () => {
    state.tensor = tensors[Number(choice.value)].name;
    redrawPanel("tensor");
  } }, tensors.map((tensor, index) => el("option", { value: index, selected: tensor === chosen }, `${roleOf(layer, tensor)}: ${shortened(tensor.name, 40)}`)));
  const scaleButton = button("log", () => {
    histogramState.isLog = !isLogarithmic(chosen);
    redrawPanel("log");
  }, { id: "log", "aria-pressed": String(isLogarithmic(chosen)), title: "Logarithmic heights show rare values" });
  return [
    el("div", { class: "section-head" }, el("h3", {}, "Values"), el("div", { class: "tools" }, choice, chosen.values && scaleButton)),
    histogram(chosen),
    definitions([
      ["Shape", chosen.shape && named(chosen.shape)],
      ["Type", chosen.dtype && named(chosen.dtype)],
      ["Format", chosen.q_format && named(`${chosen.q_format}${isNumber(chosen.scale) ? `, scale ${real(chosen.scale)}` : ""}`)],
      ["Seen", isNumber(chosen.low) && isNumber(chosen.high) ? `${real(chosen.low)} to ${real(chosen.high)}` : ""],
      ["Different values", isNumber(chosen.distinct) ? count(chosen.distinct) : ""],
      ["Clipped", isNumber(chosen.clipped) ? percent(chosen.clipped) : ""],
      ["Signal to noise", isNumber(chosen.sqnr_db) ? decibels(chosen.sqnr_db) : ""],
    ]),
  ];
}

function layerPanel(run, layer) {
  const step = (by, sign, label) => button(sign, () => chooseLayer(layer.index + by), { "aria-label": label, title: label, disabled: !run.layers[layer.index + by] });
  return [
    el("div", { class: "panel-head" },
      el("div", {}, el("h2", { class: "long" }, layer.name), el("p", { class: "muted" }, `layer ${layer.index + 1} of ${run.layers.length} · `, named(layer.op))),
      el("span", { class: "buttons" }, step(-1, "↑", "Previous layer"), step(1, "↓", "Next layer"), button("✕", () => chooseLayer(null), { "aria-label": "Clear the selection", title: "Clear the selection (Escape)" }))),
    sentences("Advice", layer.advice),
    sentences("Findings of the check", layer.findings.map((finding) => [finding.reason, finding.remedy].filter(Boolean).join(" "))),
    errorBars(layer),
    tensorPart(run, layer),
    el("h3", {}, "Figures"),
    layerFacts(run, layer),
  ];
}

// Drawing again must not take the focus away from what was just used.
function redrawPanel(focused) {
  drawPanel(currentRun(), currentLayer());
  byId(focused)?.focus();
}

function drawPanel(run, layer) {
  const parts = layer ? layerPanel(run, layer) : emptyPanel(run);
  byId("panel").replaceChildren(...parts.flat(2).filter(Boolean));
}

addView({
  drawRun(run) {
    byId("explore").hidden = !run.layers.length;
  },
  drawLayer: drawPanel,
});
