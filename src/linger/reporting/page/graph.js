// The graph of the network. Only what is in view is drawn, and from afar only boxes, so that the page stays small.

const DETAIL_SCALE = 0.42;
const READING_SCALE = 0.9;
const MARGIN = 16;
const DECIBEL_STEPS = [40, 30, 20, 10];
const DECIBEL_LABELS = ["≥ 40 dB", "30–40", "20–30", "10–20", "< 10 dB"];
const COST_LABELS = ["≤ 20 %", "≤ 40 %", "≤ 60 %", "≤ 80 %", "of the largest"];

// How a coloring turns a layer into a class of the style sheet and a figure; colors never stand alone.
const byDecibels = (key) => ({
  has: (run) => run.layers.some((layer) => isNumber(layer[key])),
  classOf: (layer) => (isNumber(layer[key]) ? `error-${(DECIBEL_STEPS.findIndex((step) => layer[key] >= step) + 5) % 5}` : "unknown"),
  text: (layer) => (isNumber(layer[key]) ? decibels(layer[key]) : layer.runs_as === "moves" ? "only moves" : "not measured"),
  legend: [...DECIBEL_LABELS.map((label, index) => [`error-${index}`, label]), ["unknown", "not measured"]],
});
const byCost = (key, show) => ({
  has: (run) => run.layers.some((layer) => layer[key] > 0),
  classOf: (layer, run) => `cost-${Math.max(0, Math.ceil((5 * layer[key]) / Math.max(1, largestOf(run, key))) - 1)}`,
  text: (layer) => show(layer[key]),
  legend: COST_LABELS.map((label, index) => [`cost-${index}`, label]),
});
const largest = new WeakMap();
function largestOf(run, key) {
  if (!largest.has(run)) largest.set(run, new Map());
  const known = largest.get(run);
  if (!known.has(key)) known.set(key, run.layers.reduce((most, layer) => Math.max(most, layer[key]), 0));
  return known.get(key);
}
const KINDS = { integer: "integers", float: "floating point", moves: "only moves numbers" };
const COLORINGS = {
  error: { title: "Error so far (signal to noise)", ...byDecibels("sqnr_db") },
  born: { title: "Error born in the layer (signal to noise)", ...byDecibels("born_db") },
  macs: { title: "Cost: multiply-accumulates", ...byCost("macs", (value) => (value ? `${big(value)} MACs` : "no MACs")) },
  memory: { title: "Cost: memory alive", ...byCost("live_bytes", bytes) },
  kind: {
    title: "Integer or float",
    has: () => true,
    classOf: (layer) => `kind-${Object.hasOwn(KINDS, layer.runs_as) ? layer.runs_as : "moves"}`,
    text: (layer) => (Object.hasOwn(KINDS, layer.runs_as) ? layer.runs_as : ""),
    legend: Object.entries(KINDS).map(([kind, label]) => [`kind-${kind}`, label]),
  },
};

const graph = { run: null, layout: null, coloring: "", scale: 1, x: 0, y: 0, cursor: null, canvas: null, room: null, image: null, world: null, isWaiting: false };

function graphSize() {
  return [graph.canvas.clientWidth || 800, graph.canvas.clientHeight || 500];
}

const limited = (value, low, high) => Math.min(high, Math.max(low, value));

// Where the network begins before anything is scrolled: in the middle, where it is smaller than the frame.
const beginning = (all, part) => Math.max(MARGIN, (all - part * graph.scale) / 2);

// The frame scrolls a room as large as the network; the image stays in the frame, and shows what the frame is scrolled to.
function readScroll() {
  const [width, height] = graphSize();
  graph.x = beginning(width, graph.layout.width) - graph.canvas.scrollLeft;
  graph.y = beginning(height, graph.layout.height) - graph.canvas.scrollTop;
}

function moveGraph(scale, x, y) {
  const [width, height] = graphSize();
  graph.scale = limited(scale, 0.01, 2.5);
  const extent = (part) => part * graph.scale + 2 * MARGIN;
  graph.room.style.width = `${Math.max(width, extent(graph.layout.width))}px`;
  graph.room.style.height = `${Math.max(height, extent(graph.layout.height))}px`;
  graph.canvas.scrollTo({ left: beginning(width, graph.layout.width) - x, top: beginning(height, graph.layout.height) - y, behavior: "instant" });
  redraw();
}

function redraw() {
  readScroll();
  if (graph.isWaiting) return;
  graph.isWaiting = true;
  requestAnimationFrame(() => {
    graph.isWaiting = false;
    drawGraph();
  });
}

function zoomGraph(factor, x, y) {
  const [width, height] = graphSize();
  const [cx, cy] = [x ?? width / 2, y ?? height / 2];
  const scale = limited(graph.scale * factor, 0.01, 2.5);
  moveGraph(scale, cx - ((cx - graph.x) * scale) / graph.scale, cy - ((cy - graph.y) * scale) / graph.scale);
}

// The whole network, or, at first, as much of it as can be read: the rest is scrolled to.
function fitGraph(isWhole) {
  const [width, height] = graphSize();
  const { layout } = graph;
  const whole = Math.min((width - 32) / layout.width, (height - 32) / layout.height, 1.1);
  moveGraph(isWhole ? whole : Math.max(whole, READING_SCALE), Infinity, Infinity);
}

function bringIntoView(index) {
  const [width, height] = graphSize();
  const node = graph.layout.nodes[index];
  const [left, top] = [node.x * graph.scale + graph.x, node.y * graph.scale + graph.y];
  const isSeen = left >= 0 && top >= 0 && left + BOX.width * graph.scale <= width && top + BOX.height * graph.scale <= height;
  if (isSeen) return;
  const scale = Math.max(graph.scale, READING_SCALE);
  moveGraph(scale, width / 2 - (node.x + BOX.width / 2) * scale, height / 2 - (node.y + BOX.height / 2) * scale);
}

function visibleParts() {
  const [width, height] = graphSize();
  const view = { left: -graph.x / graph.scale, top: -graph.y / graph.scale };
  view.right = view.left + width / graph.scale;
  view.bottom = view.top + height / graph.scale;
  const { nodes, edges } = graph.layout;
  const isIn = (left, top, right, bottom) => right >= view.left && left <= view.right && bottom >= view.top && top <= view.bottom;
  return {
    nodes: nodes.map((_, index) => index).filter((index) => isIn(nodes[index].x, nodes[index].y, nodes[index].x + BOX.width, nodes[index].y + BOX.height)),
    edges: edges.filter((edge) => isIn(edge.left, edge.top, edge.right, edge.bottom)),
  };
}

const classOf = (node) => (node.kind === "layer" ? COLORINGS[graph.coloring].classOf(node.layer, graph.run) : "port");
const boxPath = (node) => `M${node.x} ${node.y}h${BOX.width}v${BOX.height}h${-BOX.width}z`;

function drawFromAfar(parts) {
  const boxes = new Map();
  for (const index of parts.nodes) {
    const kind = classOf(graph.layout.nodes[index]);
    boxes.set(kind, (boxes.get(kind) ?? "") + boxPath(graph.layout.nodes[index]));
  }
  const marked = [[currentIndex(), "selected-ring"], [graph.cursor, "cursor-ring"]].filter(([index]) => index !== null);
  return [
    svg("path", { class: "edge far", d: parts.edges.map((edge) => edge.path).join("") }),
    ...[...boxes].map(([kind, path]) => svg("path", { class: `far-box ${kind}`, d: path })),
    ...marked.map(([index, kind]) => svg("path", { class: `ring ${kind}`, d: boxPath(graph.layout.nodes[index]) })),
  ];
}

function drawBox(index) {
  const node = graph.layout.nodes[index];
  const isLayer = node.kind === "layer";
  const detail = isLayer ? `${shortened(node.layer.op, 18)} · ${COLORINGS[graph.coloring].text(node.layer)}` : `${node.kind} ${shortened(node.detail, 18)}`;
  const label = isLayer ? `Layer ${node.layer.index + 1}, ${node.name}, ${detail}` : `${node.kind} ${node.name}`;
  const marks = `${index === currentIndex() ? " selected" : ""}${index === graph.cursor ? " cursor" : ""}`;
  return svg(
    "g",
    { class: `box ${classOf(node)}${marks}`, id: `box-${index}`, role: "img", "aria-label": label, transform: `translate(${node.x} ${node.y})`, "clip-path": "url(#box-clip)" },
    svg("rect", { width: BOX.width, height: BOX.height, rx: isLayer ? 6 : 22 }),
    svg("text", { class: "box-name", x: 12, y: 20 }, shortened(node.name, 24)),
    svg("text", { class: "box-detail", x: 12, y: 36 }, detail),
  );
}

const currentIndex = () => (state.layer === null ? null : graph.layout.first + state.layer);

function drawGraph() {
  const parts = visibleParts();
  // so many boxes with text only where they can be read; the bound holds for any model
  const isFar = graph.scale < DETAIL_SCALE || parts.nodes.length > 160 || parts.edges.length > 400;
  const drawn = isFar ? drawFromAfar(parts) : [
    ...parts.edges.map((edge) => svg("path", { class: edge.from === currentIndex() || edge.to === currentIndex() ? "edge near" : "edge", d: edge.path, "marker-end": "url(#arrow)" })),
    ...parts.nodes.map(drawBox),
  ];
  const [width, height] = graphSize();
  graph.image.setAttribute("width", width);
  graph.image.setAttribute("height", height);
  graph.world.setAttribute("transform", `translate(${graph.x} ${graph.y}) scale(${graph.scale})`);
  graph.world.replaceChildren(...drawn);
  const isDrawn = graph.cursor !== null && !isFar && parts.nodes.includes(graph.cursor);
  if (isDrawn) graph.canvas.setAttribute("aria-activedescendant", `box-${graph.cursor}`);
  else graph.canvas.removeAttribute("aria-activedescendant");
}

function boxAt(clientX, clientY) {
  const frame = graph.canvas.getBoundingClientRect();
  const [x, y] = [(clientX - frame.left - graph.x) / graph.scale, (clientY - frame.top - graph.y) / graph.scale];
  const found = graph.layout.nodes.findIndex((node) => x >= node.x && x <= node.x + BOX.width && y >= node.y && y <= node.y + BOX.height);
  return found < 0 ? null : found;
}

function chooseBox(index) {
  const node = index === null ? null : graph.layout.nodes[index];
  if (node?.kind === "layer") chooseLayer(node.layer.index, { isSeen: true });
}

// Up and down follow connections, left and right the order of execution.
function nextBox(key) {
  const { nodes, readers, first } = graph.layout;
  const here = graph.cursor ?? currentIndex();
  if (here === null) return Math.min(first, nodes.length - 1);
  const next = { ArrowDown: readers[here][0], ArrowUp: nodes[here].sources[0], ArrowRight: here + 1, ArrowLeft: here - 1 }[key];
  return next !== undefined && next >= 0 && next < nodes.length ? next : here;
}

function graphKey(event) {
  const actions = { "+": () => zoomGraph(1.25), "=": () => zoomGraph(1.25), "-": () => zoomGraph(0.8), 0: () => fitGraph(true), Enter: () => chooseBox(graph.cursor) };
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key.startsWith("Arrow")) {
    graph.cursor = nextBox(event.key);
    bringIntoView(graph.cursor);
    drawGraph();
    const node = graph.layout.nodes[graph.cursor];
    announce(node.kind === "layer" ? `Layer ${node.layer.index + 1}, ${node.name}` : `${node.kind} ${node.name}`);
  } else if (Object.hasOwn(actions, event.key)) actions[event.key]();
  else return;
  event.preventDefault();
}

function wireGraph(canvas) {
  let drag = null;
  canvas.addEventListener("keydown", graphKey);
  canvas.addEventListener("blur", () => {
    graph.cursor = null;
    drawGraph();
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const frame = canvas.getBoundingClientRect();
    zoomGraph(Math.exp(-limited(event.deltaY, -200, 200) / 400), event.clientX - frame.left, event.clientY - frame.top);
  }, { passive: false });
  canvas.addEventListener("scroll", redraw);
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") return;
    drag = { x: event.clientX, y: event.clientY, fromX: graph.x, fromY: graph.y, isMoved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag || !event.buttons) return;
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.isMoved && Math.hypot(dx, dy) < 5) return;
    if (!drag.isMoved) canvas.setPointerCapture(event.pointerId);
    drag.isMoved = true;
    moveGraph(graph.scale, drag.fromX + dx, drag.fromY + dy);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!drag?.isMoved) chooseBox(boxAt(event.clientX, event.clientY));
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  new ResizeObserver(() => moveGraph(graph.scale, graph.x, graph.y)).observe(canvas);
}

function legend() {
  const coloring = COLORINGS[graph.coloring];
  return el("ul", { class: "legend", "aria-label": "Legend" }, coloring.legend.map(([kind, label]) =>
    el("li", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), label)));
}

addView({
  drawRun(run) {
    if (!run.layers.length) return showSection("graph", "Graph", null);
    const offered = Object.keys(COLORINGS).filter((key) => COLORINGS[key].has(run));
    if (!offered.includes(graph.coloring)) graph.coloring = offered[0];
    Object.assign(graph, { run, layout: null, cursor: null });
    graph.world = svg("g", {});
    const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { class: "arrow", d: "M0 0.5L8 4L0 7.5z" }));
    const clip = svg("clipPath", { id: "box-clip" }, svg("rect", { x: -3, y: -3, width: BOX.width + 6, height: BOX.height + 6 }));
    graph.image = svg("svg", { "aria-hidden": "false" }, svg("defs", {}, arrow, clip), graph.world);
    graph.room = el("div", {}, graph.image);
    graph.canvas = el(
      "div",
      { class: "canvas", tabindex: 0, role: "application", "aria-label": "Graph of the network. Arrow keys move from layer to layer, Enter selects, plus and minus zoom, 0 shows everything." },
      graph.room,
    );
    let key = legend();
    const choice = el("select", { id: "coloring", "aria-label": "Color by", onchange: () => {
      graph.coloring = choice.value;
      const next = legend();
      key.replaceWith(next);
      key = next;
      drawGraph();
    } }, offered.map((name) => el("option", { value: name, selected: name === graph.coloring }, COLORINGS[name].title)));
    const zoom = [["−", "Zoom out", () => zoomGraph(0.8)], ["+", "Zoom in", () => zoomGraph(1.25)], ["Fit", "Show the whole network", () => fitGraph(true)]];
    showSection("graph", "Graph", [
      sectionHead("Graph", "Every box is a layer of the file, from top to bottom as data flows. Click one to see its figures; scroll or drag to move, and turn the wheel with Ctrl to zoom.",
        el("label", { class: "choice" }, "Color by ", choice), el("span", { class: "buttons" }, zoom.map(([sign, label, action]) => button(sign, action, { "aria-label": label, title: label })))),
      graph.canvas,
      key,
    ]);
    byId("explore").hidden = false;
    const [width, height] = graphSize();
    graph.layout = layOut(run, { width, height });
    wireGraph(graph.canvas);
    fitGraph(false);
    drawGraph();
    return undefined;
  },
  drawLayer() {
    if (!graph.run?.layers.length || byId("graph").hidden) return;
    if (state.layer !== null) bringIntoView(currentIndex());
    drawGraph();
  },
});
