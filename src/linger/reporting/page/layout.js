// Where the boxes of the graph stand. Networks are long and narrow: one row per step of the longest path, the main line in the
// first column, branches in the next ones, and connections that jump over rows in lanes beside the boxes. What would be too tall is
// cut into strips that stand side by side like columns of a newspaper.

const BOX = { width: 204, height: 46, column: 240, row: 76, lane: 9, strip: 56 };
const MOST_CUT = 6;

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
  // beside a box that has no neighbor the line leaves and arrives sideways, else through the gap between the rows
  const y1 = isLast(source) ? source.y + middle : source.y + BOX.height + gap;
  const y2 = isLast(target) ? target.y + middle : target.y - gap;
  const start = isLast(source) ? `M${source.x + BOX.width} ${y1}` : `M${source.x + BOX.width / 2} ${source.y + BOX.height}V${y1}`;
  const end = isLast(target) ? `H${target.x + BOX.width}` : `H${target.x + BOX.width / 2}V${target.y}`;
  const turn = 7;
  return `${start}H${x - turn}Q${x} ${y1} ${x} ${y1 + turn}V${y2 - turn}Q${x} ${y2} ${x - turn} ${y2}${end}`;
}

// How many connections go on below each row.
function crossings(edges, nodes, rows) {
  const changes = new Array(rows + 1).fill(0);
  for (const { from, to } of edges) {
    changes[nodes[from].rank] += 1;
    changes[nodes[to].rank] -= 1;
  }
  let crossing = 0;
  return changes.map((change) => (crossing += change));
}

// First rows of strips of at most about `wanted` rows, cut where few connections are in the way.
function stripStarts(crossing, rows, wanted) {
  const starts = [0];
  while (rows - starts.at(-1) > wanted) {
    const start = starts.at(-1);
    let cut = null;
    for (let next = start + Math.max(1, Math.ceil(wanted * 0.5)); next < rows && (next <= start + wanted || cut === null); next += 1) {
      if (crossing[next - 1] <= MOST_CUT && (cut === null || crossing[next - 1] <= crossing[cut - 1])) cut = next;
    }
    if (cut === null) break;
    starts.push(cut);
  }
  return starts;
}

// As many strips as let the whole be shown largest in an image of that size; every connection that is cut counts against it.
function chooseStrips(crossing, rows, width, view) {
  let best = { scale: 0, starts: [0] };
  for (let number = 1; number <= 60 && number <= rows; number += 1) {
    const starts = stripStarts(crossing, rows, Math.ceil(rows / number));
    const longest = Math.max(...starts.map((start, index) => (starts[index + 1] ?? rows) - start));
    const extra = starts.slice(1).reduce((sum, start) => sum + crossing[start - 1] - 1, 0);
    const scale = Math.min(view.width / (starts.length * (width + BOX.strip)), view.height / (longest * BOX.row), 1) * 0.93 ** Math.min(6, extra);
    if (scale > best.scale * 1.05) best = { scale, starts };
  }
  return best.starts;
}

// Out of a strip, through the gutter beside it, and into the next one; over the top to one further away.
function stripPath(source, target, number) {
  const gap = (BOX.row - BOX.height) / 2;
  const aside = (number % 4) * 5;
  const x = target.strip.left - BOX.strip / 2 + aside;
  const start = `M${source.x + BOX.width / 2} ${source.y + BOX.height}V${source.y + BOX.height + gap}`;
  const end = `H${x}V${target.y - gap}H${target.x + BOX.width / 2}V${target.y}`;
  if (target.strip.number === source.strip.number + 1) return start + end;
  return `${start}H${source.strip.left + source.strip.width + BOX.strip / 2 + aside}V${-gap - aside}${end}`;
}

function assignStrips(nodes, edges, starts) {
  const strips = starts.map((start, number) => ({ start, number, width: BOX.width }));
  const stripOf = (rank) => strips.findLast((strip) => strip.start <= rank);
  for (const node of nodes) {
    node.strip = stripOf(node.rank);
    node.strip.width = Math.max(node.strip.width, node.x + BOX.width);
  }
  for (const edge of edges) if (nodes[edge.from].strip !== nodes[edge.to].strip) edge.lane = undefined;
  for (const edge of edges) if (edge.lane !== undefined) nodes[edge.from].strip.width = Math.max(nodes[edge.from].strip.width, edge.lane);
  let left = 0;
  for (const strip of strips) {
    strip.left = left;
    left += strip.width + BOX.strip;
  }
  for (const node of nodes) {
    node.x += node.strip.left;
    node.y -= node.strip.start * BOX.row;
  }
}

function routeEdge(edge, number, nodes, taken) {
  const [source, target] = [nodes[edge.from], nodes[edge.to]];
  if (source.strip !== target.strip) edge.path = stripPath(source, target, number);
  else if (edge.lane === undefined) edge.path = directPath(source, target, taken);
  else edge.path = lanePath(source, target, source.strip.left + edge.lane, taken);
  const right = Math.max(source.x, target.x) + BOX.width;
  Object.assign(edge, {
    left: Math.min(source.x, target.x),
    right: edge.lane === undefined ? right : Math.max(right, source.strip.left + edge.lane),
    top: source.strip === target.strip ? source.y : -BOX.row,
    bottom: Math.max(source.y, target.y) + BOX.height,
  });
}

// Boxes and connections for an image of that width and height.
function layOut(run, view) {
  const { nodes, first } = networkOf(run);
  rankNodes(nodes);
  const taken = placeNodes(nodes);
  const edges = nodes.flatMap((node, to) => node.sources.map((from) => ({ from, to })));
  const isDirect = ({ from, to }) => [nodes[from].column, nodes[to].column].some((column) => isFree(taken, column, nodes[from].rank, nodes[to].rank));
  const jumps = edges.filter((edge) => !isDirect(edge));
  const laneOf = assignLanes(jumps, nodes);
  for (const edge of jumps) {
    const { lane, end } = laneOf.get(edge.from);
    edge.lane = widest(taken, nodes[edge.from].rank, end) * BOX.column + BOX.width + 18 + lane * BOX.lane;
  }
  const rows = Math.max(...nodes.map((node) => node.rank)) + 1;
  const width = Math.max(...nodes.map((node) => node.x + BOX.width), ...jumps.map((edge) => edge.lane));
  assignStrips(nodes, edges, chooseStrips(crossings(edges, nodes, rows), rows, width, view));
  edges.forEach((edge, number) => routeEdge(edge, number, nodes, taken));
  const readers = nodes.map(() => []);
  for (const { from, to } of edges) readers[from].push(to);
  const extent = (key) => Math.max(...nodes.map((node) => node[key]), ...edges.map((edge) => edge[key] ?? 0));
  for (const node of nodes) Object.assign(node, { right: node.x + BOX.width, bottom: node.y + BOX.height });
  return { nodes, edges, readers, first, width: extent("right"), height: extent("bottom") };
}
