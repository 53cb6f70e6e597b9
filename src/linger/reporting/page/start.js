// Contents, controls, keys; then everything is drawn.

addView(cardsView);

addView({
  drawRun() {
    const sections = [...document.querySelectorAll("main section")].filter((section) => !section.hidden);
    byId("contents").replaceChildren(...sections.map((section) => el("a", { href: `#${section.id}` }, section.dataset.title)));
  },
});

function drawControls() {
  const choice = RUNS.length > 1 && el("select", { id: "run", "aria-label": "Run", onchange: () => chooseRun(Number(choice.value)) },
    RUNS.map((run, index) => el("option", { value: index, selected: index === state.run }, shortened(run.name, 30))));
  const theme = button("◐", turnTheme, { id: "theme", "aria-label": "Light or dark", title: "Light or dark" });
  byId("controls").replaceChildren(...[choice, theme].filter(Boolean));
}

document.addEventListener("keydown", (event) => {
  const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  if (event.key === "Escape") {
    if (event.target.id === "layer-filter" && event.target.value) return;
    if (state.layer !== null) chooseLayer(null);
  } else if (event.key === "/" && !isTyping && byId("layer-filter")) {
    event.preventDefault();
    byId("layer-filter").focus();
  }
});

// Links inside the page scroll; the address keeps the selection. In a notebook they would lead out of the frame.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href^="#"]');
  const target = link && byId(link.getAttribute("href").slice(1));
  if (!target) return;
  event.preventDefault();
  target.scrollIntoView({ block: "start" });
  target.setAttribute("tabindex", "-1");
  target.focus({ preventScroll: true });
});

// A link to a layer may be followed while the page is open.
addEventListener("hashchange", () => {
  readAddress();
  drawControls();
  drawRun();
});

readAddress();
drawControls();
drawRun();
