// What stands behind the verdict: findings, tuning, sensitivity, certificate, settings, notes.

const SEVERITIES = { error: "bad", warning: "warning", note: "neutral" };

function findingItem(run, finding) {
  const kind = Object.hasOwn(SEVERITIES, finding.severity) ? SEVERITIES[finding.severity] : "neutral";
  const layer = run.layers[finding.layer];
  const where = finding.where || layer?.name || "the network";
  return el(
    "li",
    { class: `finding ${kind}` },
    el("p", { class: "finding-head" }, badge(shortened(finding.severity, 20), kind), finding.rule && el("code", { class: "name" }, finding.rule),
      layer ? button(named(where), () => chooseLayer(layer.index, { isSeen: true }), { class: "link" }) : named(where)),
    el("p", { class: "long" }, finding.reason),
    finding.remedy && el("p", { class: "long remedy" }, el("strong", {}, "Remedy: "), finding.remedy),
  );
}

addView({
  drawRun(run) {
    if (!run.findings.length) return showSection("findings", "Findings", null);
    const draw = (part) => el("ul", { class: "findings" }, part.map((finding) => findingItem(run, finding)));
    return showSection("findings", "Findings", [
      sectionHead("Findings", `What the check of the file${run.target ? ` for ${shortened(run.target, 40)}` : ""} has to say, the worst first, with what to do about it.`),
      paged(run.findings, 20, draw, { label: "findings" }),
    ]);
  },
});

// A bar to the right for a gain, to the left for a loss; the figure beside it has the sign.
function gainBar(gain, largest) {
  const bar = el("span", { class: gain < 0 ? "gain-part loss" : "gain-part" });
  bar.style.width = `${(Math.abs(gain) / largest) * 50}%`;
  if (gain < 0) bar.style.right = "50%";
  else bar.style.left = "50%";
  return el("span", { class: "gain", "aria-hidden": "true" }, bar);
}

// Null where a step did not end: null in a difference would count as 0.
function gainOf(step) {
  const gain = isNumber(step.after_db) && isNumber(step.before_db) ? step.after_db - step.before_db : null;
  return Number.isFinite(gain) ? gain : null;
}

function tuningRow(step, largest) {
  const gain = gainOf(step);
  const metric = isNumber(step.before_metric) || isNumber(step.after_metric) ? `${figure(step.before_metric)} → ${figure(step.after_metric)}` : "";
  return el(
    "tr",
    { class: step.is_kept ? "" : "dropped" },
    el("th", { scope: "row" }, named(step.name)),
    cell(badge(step.is_kept ? "kept" : "dropped", step.is_kept ? "good" : "neutral")),
    cell(isNumber(step.before_db) ? `${decibels(step.before_db)} → ${decibels(step.after_db)}` : NONE, true),
    cell(isNumber(gain) ? el("span", { class: "gain-cell" }, gainBar(gain, largest), el("span", { class: "number" }, `${signed(gain)} dB`)) : NONE),
    cell(metric, true),
    cell(step.seconds > 0 ? `${step.seconds.toFixed(1)} s` : "", true),
    el("td", { class: "long why" }, step.why),
  );
}

addView({
  drawRun(run) {
    const tuning = run.tuning;
    if (!tuning) return showSection("tuning", "Tuning", null);
    const largest = Math.max(0.1, ...tuning.steps.map((step) => Math.abs(gainOf(step))));
    const columns = [{ title: "Step" }, { title: "" }, { title: "Signal to noise", numeric: true }, { title: "Gain" }, { title: "Metric", numeric: true }, { title: "CPU time", numeric: true }, { title: "Why" }];
    const draw = (part) => table("Steps of tuning", columns, part.map((step) => tuningRow(step, largest)));
    return showSection("tuning", "Tuning", [
      sectionHead("Tuning", "What was tried to bring the integers closer to the float model, and what was kept. Every step is judged on data that it has not seen."),
      el("p", { class: "strong long" }, tuning.summary),
      tuning.steps.length > 0 && paged(tuning.steps, 20, draw, { label: "steps" }),
      tuning.notes.length > 0 && el("ul", { class: "sentences" }, tuning.notes.map((note) => el("li", {}, note))),
    ]);
  },
});

addView({
  drawRun(run) {
    if (!run.sensitivity.length) return showSection("sensitivity", "Sensitivity", null);
    const most = Math.max(...run.sensitivity.map((row) => row.noise_share), 1e-9);
    const columns = [{ title: "Layer" }, { title: "Op" }, { title: "Bits" }, { title: "Part of the noise" }, { title: "SQNR", numeric: true }, { title: "What hurts" }];
    const link = (row) => {
      const layer = run.layers.find((entry) => entry.name === row.name || (entry.path && entry.path === row.name));
      return layer ? button(named(row.name), () => chooseLayer(layer.index, { isSeen: true }), { class: "link" }) : named(row.name);
    };
    const draw = (part) => table("Sensitivity of the layers", columns, part.map((row) => el(
      "tr",
      {},
      el("th", { scope: "row" }, link(row)),
      cell(named(row.op)),
      cell(named(row.bits)),
      cell(el("span", { class: "gain-cell" }, meter(row.noise_share / most), el("span", { class: "number" }, percent(row.noise_share)))),
      cell(decibels(row.sqnr_db), true),
      cell(named(row.what)),
    )));
    return showSection("sensitivity", "Sensitivity", [
      sectionHead("Sensitivity", "Each layer was quantized alone, with everything else in float: how much of the noise at the output is its doing. More bits help most at the top."),
      paged(run.sensitivity, 15, draw, { label: "layers" }),
    ]);
  },
});

function copyButton(text, shown) {
  const made = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      made.textContent = "Copied";
    } catch {
      // no clipboard here: mark the text, so that the keyboard can copy it
      const range = document.createRange();
      range.selectNodeContents(shown);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      made.textContent = "Marked: press Ctrl C";
    }
  });
  return made;
}

function digestTable(digests) {
  const rows = Object.entries(digests).map(([name, digest]) => el("tr", {}, el("th", { scope: "row" }, named(name)), el("td", {}, el("code", { class: "digest" }, digest))));
  return table("Digests", [{ title: "What" }, { title: "SHA-256" }], rows.slice(0, 40));
}

addView({
  drawRun(run) {
    const proof = run.proof;
    if (!proof && !run.command) return showSection("certificate", "Certificate", null);
    const shown = el("code", { class: "command" }, run.command);
    return showSection("certificate", "Certificate", [
      sectionHead("Certificate", "What was compared, integer by integer, and what it takes to repeat it."),
      ...(proof ? [
        el("p", { class: "long" }, badge(proof.is_exact ? "bit-exact" : "differs", proof.is_exact ? "good" : "bad"), " ", proof.summary),
        proof.first && el("p", { class: "long" }, el("strong", {}, "First difference: "), proof.first),
        el("div", { class: "columns" },
          definitions([
            ["Compared", proof.compared.length > 0 && el("span", { class: "long" }, `the file with ${proof.compared.join(", ")}`)],
            ["Integers", `${count(proof.differing)} of ${count(proof.integers)} differ`],
            ["Tensors", proof.tensors > 0 && count(proof.tensors)],
            ["Batches", proof.batches > 0 && count(proof.batches)],
            ["Certificate", proof.certificate && named(proof.certificate)],
            ["CPU", proof.cpu && el("span", { class: "long" }, proof.cpu)],
          ].map((pair) => [pair[0], pair[1] || ""])),
          definitions(Object.entries(proof.versions).slice(0, 20).map(([name, version]) => [named(name), named(version)]))),
        Object.keys(proof.digests).length > 0 && digestTable(proof.digests),
      ] : [el("p", {}, "Nothing was compared.")]),
      run.command && el("h3", {}, "Repeat this run"),
      run.command && el("div", { class: "repeat" }, el("pre", {}, shown), copyButton(run.command, shown)),
    ]);
  },
});

addView({
  drawRun(run) {
    if (!run.config) return showSection("settings", "Settings", null);
    const text = el("pre", { class: "config", tabindex: 0 }, run.config);
    return showSection("settings", "Settings", [
      sectionHead("Settings", "The file of settings that this run was made with."),
      el("details", {}, el("summary", {}, `${plural(run.config.trimEnd().split("\n").length, "line")} of settings`), text),
    ]);
  },
});

addView({
  drawRun(run) {
    if (!run.notes.length) return showSection("notes", "Notes", null);
    return showSection("notes", "Notes", [
      sectionHead("Notes", "What a reader of these figures should know."),
      paged(run.notes, 20, (part) => el("ul", { class: "sentences" }, part.map((note) => el("li", {}, note))), { label: "notes" }),
    ]);
  },
});
