// Memory over time: the blocks of the arena, or where no plan has placed them, all that is alive at each step.

const MEMORY = { width: 1000, height: 300, left: 76, right: 14, top: 18, bottom: 34 };
const BLOCK_KINDS = { input: "input", output: "output", tensor: "tensor", scratch: "scratch" };
const blockKind = (block) => (Object.hasOwn(BLOCK_KINDS, block.kind) ? block.kind : "tensor");

function aliveAt(memory) {
  const alive = new Array(Math.max(1, memory.steps.length)).fill(0);
  for (const block of memory.blocks) for (let step = Math.max(0, block.first); step <= Math.min(block.last, alive.length - 1); step += 1) alive[step] += block.bytes;
  return alive;
}

// One path for all blocks of a kind: however many there are, the page stays small.
function placedBlocks(memory, x, y) {
  const paths = new Map();
  for (const block of memory.blocks) {
    const [left, right, low, high] = [x(block.first), x(block.last + 1), y(block.offset), y(block.offset + block.bytes)];
    const gap = right - left > 4 ? 0.75 : 0;
    paths.set(blockKind(block), `${paths.get(blockKind(block)) ?? ""}M${(left + gap).toFixed(1)} ${low.toFixed(1)}H${(right - gap).toFixed(1)}V${high.toFixed(1)}H${(left + gap).toFixed(1)}Z`);
  }
  return [...paths].map(([kind, path]) => svg("path", { class: `block block-${kind}`, d: path }));
}

function blockLabels(memory, x, y) {
  const room = (block) => x(block.last + 1) - x(block.first);
  const isLarge = (block) => room(block) > 70 && y(block.offset) - y(block.offset + block.bytes) > 15;
  return memory.blocks.filter(isLarge).slice(0, 40).map((block) => svg(
    "text",
    { class: "axis block-label", x: (x(block.first) + x(block.last + 1)) / 2, y: (y(block.offset) + y(block.offset + block.bytes)) / 2 + 4, "text-anchor": "middle" },
    shortened(block.name, Math.floor(room(block) / 7.5)),
  ));
}

function aliveArea(alive, x, y) {
  const path = alive.map((size, step) => `${step ? "" : `M${x(0)} ${y(0)}`}V${y(size).toFixed(1)}H${x(step + 1).toFixed(1)}`).join("");
  return svg("path", { class: "block block-tensor", d: `${path}V${y(0)}Z` });
}

function memoryImage(memory, alive, caption) {
  const { width, height, left, right, top, bottom } = MEMORY;
  const steps = alive.length;
  const isPlaced = memory.blocks.length > 0 && memory.blocks.every((block) => isNumber(block.offset));
  const highest = Math.max(1, memory.arena_bytes ?? 0, memory.peak_bytes, ...(isPlaced ? memory.blocks.map((block) => block.offset + block.bytes) : alive));
  // a limit far above would flatten everything; then the text below says it
  const limit = isNumber(memory.limit_bytes) && memory.limit_bytes <= 2.5 * highest ? memory.limit_bytes : null;
  const ceiling = Math.max(highest, limit ?? 0) * 1.06;
  const x = (step) => left + (step / steps) * (width - left - right);
  const y = (size) => height - bottom - (size / ceiling) * (height - top - bottom);
  const line = (size, kind, text) => [svg("path", { class: `level ${kind}`, d: `M${left} ${y(size)}H${width - right}` }), svg("text", { class: `axis ${kind}-label`, x: width - right, y: y(size) - 4, "text-anchor": "end" }, text)];
  const image = svg(
    "svg",
    { class: "memory", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Memory over ${plural(steps, "step")}: at most ${bytes(memory.peak_bytes)} at one step` },
    byteTicks(ceiling).map((size) => [svg("path", { class: "grid", d: `M${left} ${y(size)}H${width - right}` }), svg("text", { class: "axis", x: left - 8, y: y(size) + 4, "text-anchor": "end" }, bytes(size))]),
    isPlaced ? [placedBlocks(memory, x, y), blockLabels(memory, x, y)] : aliveArea(alive, x, y),
    line(memory.peak_bytes, "peak", `peak ${bytes(memory.peak_bytes)}`),
    limit !== null && line(limit, "limit", `limit ${bytes(limit)}`),
    ticks(1, steps, Math.min(steps, 10)).filter((step) => Number.isInteger(step) && step >= 1).map((step) => svg("text", { class: "axis", x: x(step - 0.5), y: height - bottom + 16, "text-anchor": "middle" }, step)),
    svg("text", { class: "axis", x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, "step"),
  );
  image.addEventListener("pointermove", (event) => {
    const frame = image.getBoundingClientRect();
    const step = Math.floor((((event.clientX - frame.left) / frame.width) * width - left) / ((width - left - right) / steps));
    const size = ((height - bottom - ((event.clientY - frame.top) / frame.height) * height) / (height - top - bottom)) * ceiling;
    if (step < 0 || step >= steps) return;
    const block = isPlaced && memory.blocks.find((entry) => entry.first <= step && step <= entry.last && entry.offset <= size && size <= entry.offset + entry.bytes);
    caption.textContent = `Step ${step + 1}, ${memory.steps[step] ?? ""}: ${bytes(alive[step])} alive${block ? `; ${block.name}: ${bytes(block.bytes)}` : ""}`;
  });
  return image;
}

// Round numbers of bytes: powers of two.
function byteTicks(ceiling) {
  let step = 1;
  while (ceiling / step > 5) step *= 2;
  const found = [];
  for (let size = 0; size <= ceiling; size += step) found.push(size);
  return found;
}

function largestBlocks(memory) {
  const rows = [...memory.blocks].sort((one, other) => other.bytes - one.bytes).slice(0, 15);
  return el("details", {}, el("summary", {}, "The largest blocks"), table(
    "The largest blocks",
    [{ title: "Block" }, { title: "Kind" }, { title: "Size", numeric: true }, { title: "Steps", numeric: true }, { title: "Offset", numeric: true }],
    rows.map((block) => el("tr", {}, el("td", {}, named(block.name)), cell(blockKind(block)), cell(bytes(block.bytes), true), cell(`${block.first + 1}–${block.last + 1}`, true), cell(isNumber(block.offset) ? count(block.offset) : NONE, true))),
  ));
}

addView({
  drawRun(run) {
    const memory = run.memory;
    if (!memory) return showSection("memory", "Memory", null);
    const alive = aliveAt(memory);
    const caption = el("p", { class: "muted caption", "aria-hidden": "true" }, "Point at the image to read a step.");
    const kinds = [...new Set(memory.blocks.map(blockKind))];
    const isPlaced = memory.blocks.some((block) => isNumber(block.offset));
    const words = [
      isNumber(memory.arena_bytes) && `arena ${bytes(memory.arena_bytes)}`,
      `peak ${bytes(memory.peak_bytes)} at step ${alive.indexOf(Math.max(...alive)) + 1}`,
      isNumber(memory.limit_bytes) && `the chip has ${bytes(memory.limit_bytes)}`,
    ].filter(Boolean).join(" · ");
    const explanation = memory.is_arena
      ? "The static arena of the program in C: a block stands where its bytes lie, for as long as they are needed."
      : "How many bytes of tensors are alive while each layer runs. Weights are not counted.";
    return showSection("memory", "Memory", [
      sectionHead("Memory over time", explanation),
      el("p", { class: "strong" }, words),
      memory.note && el("p", { class: "long" }, memory.note),
      memory.blocks.length > 0 && [
        el("div", { class: "scroll" }, memoryImage(memory, alive, caption)),
        isPlaced && el("ul", { class: "legend" }, kinds.map((kind) => el("li", {}, el("span", { class: `swatch block-${kind}`, "aria-hidden": "true" }), BLOCK_KINDS[kind]))),
        caption,
        largestBlocks(memory),
      ],
    ].flat());
  },
});
