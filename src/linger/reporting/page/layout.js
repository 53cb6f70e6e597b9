// Where the boxes of the graph stand. Networks are long and narrow: one row per step of the longest path, the main line in the
// first column, branches in the next ones, and connections that jump over rows in lanes beside the boxes.

const BOX = { width: 184, height: 46, column: 220, row: 76, lane: 9 };

// Boxes for the inputs of the network, its layers and its outputs, and which box reads which.
function networkOf(run) {
  const nodes = [];
  const makerOf = new Map();
  for (const tensor of run.tensors) {
    if (tensor.role !== "input" || tensor.layer !== null) continue;
    makerOf.set(tensor.name, nodes.push({ kind: "input", name: tensor.name, detail: tensor.shape, sources: [] }) - 1);
  }
  const first = nodes.length;
  for (const layer of run.layers) nodes.push({ kind: "layer", layer, name: layer.name, sources: [] });
  for (const layer of run.layers) for (const output of layer.outputs) makerOf.set(output, first + layer.index);
  for (const layer of run.layers) {
    const found = layer.inputs.map((input) => makerOf.get(input)).filter((maker) => maker !== undefined && maker < first + layer.index);
    nodes[first + layer.index].sources = [...new Set(found)];
  }
  for (const tensor of run.tensors) {
    const maker = makerOf.get(tensor.name);
    if (tensor.role !== "output" || maker === undefined) continue;
    nodes.push({ kind: "output", name: tensor.name, detail: tensor.shape, sources: [maker] });
  }
  return { nodes, first };
}

// Every source comes before its readers, so one walk is enough; an input stands right above its first reader.
function rankNodes(nodes) {
  const earliest = new Map();
  for (const node of nodes) {
    node.rank = node.kind === "input" ? 0 : 1 + Math.max(0, ...node.sources.map((source) => nodes[source].rank));
    for (const source of node.sources) earliest.set(source, Math.min(earliest.get(source) ?? Infinity, node.rank));
  }
  nodes.forEach((node, index) => {
    if (node.kind === "input" && earliest.has(index)) node.rank = earliest.get(index) - 1;
  });
}

// A box stands below its first source, or in the next free column.
function placeNodes(nodes) {
  const taken = new Map();
  const order = nodes.map((_, index) => index).sort((one, other) => nodes[one].rank - nodes[other].rank || one - other);
  for (const index of order) {
    const node = nodes[index];
    if (!taken.has(node.rank)) taken.set(node.rank, new Set());
    const row = taken.get(node.rank);
    node.column = node.sources.length ? nodes[node.sources[0]].column ?? 0 : 0;
    while (row.has(node.column)) node.column += 1;
    row.add(node.column);
    node.x = node.column * BOX.column;
    node.y = node.rank * BOX.row;
  }
  return taken;
}

const isFree = (taken, column, from, to) => {
  for (let rank = from + 1; rank < to; rank += 1) if (taken.get(rank)?.has(column)) return false;
  return true;
};

function widest(taken, from, to) {
  let column = 0;
  for (let rank = from; rank <= to; rank += 1) column = Math.max(column, ...(taken.get(rank) ?? [0]));
  return column;
}

// Connections of one source share a lane; lanes whose rows overlap stand side by side, short ones inside.
function assignLanes(jumps, nodes) {
  const spans = new Map();
  for (const { from, to } of jumps) spans.set(from, Math.max(spans.get(from) ?? 0, nodes[to].rank));
  const order = [...spans].map(([from, end]) => ({ from, start: nodes[from].rank, end })).sort((one, other) => one.end - one.start - (other.end - other.start));
  const lanes = [];
  const laneOf = new Map();
  for (const span of order) {
    let lane = lanes.findIndex((kept) => kept.every((other) => span.end <= other.start || span.start >= other.end));
    if (lane < 0) lane = lanes.push([]) - 1;
    lanes[lane].push(span);
    laneOf.set(span.from, { lane, end: span.end });
  }
  return laneOf;
}

function directPath(source, target, taken) {
  const [x1, y1] = [source.x + BOX.width / 2, source.y + BOX.height];
  const [x2, y2] = [target.x + BOX.width / 2, target.y];
  if (x1 === x2) return `M${x1} ${y1}V${y2}`;
  if (isFree(taken, source.column, source.rank, target.rank)) {
    const y = y2 - (BOX.row - BOX.height);
    return `M${x1} ${y1}V${y}C${x1} ${(y + y2) / 2} ${x2} ${(y + y2) / 2} ${x2} ${y2}`;
  }
  const y = y1 + (BOX.row - BOX.height);
  return `M${x1} ${y1}C${x1} ${(y + y1) / 2} ${x2} ${(y + y1) / 2} ${x2} ${y}V${y2}`;
}

function lanePath(source, target, x, taken) {
  const isLast = (node) => Math.max(...taken.get(node.rank)) === node.column;
  const gap = (BOX.row - BOX.height) / 2;
  const middle = BOX.height / 2;
  // beside a box that has no neighbour the line leaves and arrives sideways, else through the gap between the rows
  const y1 = isLast(source) ? source.y + middle : source.y + BOX.height + gap;
  const y2 = isLast(target) ? target.y + middle : target.y - gap;
  const start = isLast(source) ? `M${source.x + BOX.width} ${y1}` : `M${source.x + BOX.width / 2} ${source.y + BOX.height}V${y1}`;
  const end = isLast(target) ? `H${target.x + BOX.width}` : `H${target.x + BOX.width / 2}V${target.y}`;
  const turn = 7;
  return `${start}H${x - turn}Q${x} ${y1} ${x} ${y1 + turn}V${y2 - turn}Q${x} ${y2} ${x - turn} ${y2}${end}`;
}

function layOut(run) {
  const { nodes, first } = networkOf(run);
  rankNodes(nodes);
  const taken = placeNodes(nodes);
  const edges = nodes.flatMap((node, to) => node.sources.map((from) => ({ from, to })));
  const isDirect = ({ from, to }) => [nodes[from].column, nodes[to].column].some((column) => isFree(taken, column, nodes[from].rank, nodes[to].rank));
  const laneOf = assignLanes(edges.filter((edge) => !isDirect(edge)), nodes);
  let width = Math.max(...nodes.map((node) => node.x + BOX.width));
  for (const edge of edges) {
    const [source, target] = [nodes[edge.from], nodes[edge.to]];
    let right = Math.max(source.x, target.x) + BOX.width;
    if (isDirect(edge)) edge.path = directPath(source, target, taken);
    else {
      const { lane, end } = laneOf.get(edge.from);
      right = widest(taken, source.rank, end) * BOX.column + BOX.width + 18 + lane * BOX.lane;
      edge.path = lanePath(source, target, right, taken);
    }
    Object.assign(edge, { left: Math.min(source.x, target.x), right, top: source.y, bottom: target.y + BOX.height });
    width = Math.max(width, right);
  }
  const height = Math.max(...nodes.map((node) => node.y + BOX.height));
  const readers = nodes.map(() => []);
  for (const { from, to } of edges) readers[from].push(to);
  return { nodes, edges, readers, first, width, height };
}
