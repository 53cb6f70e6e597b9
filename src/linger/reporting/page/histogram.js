// The values of one tensor on the grid of its fixed-point format.

const HISTOGRAM = { width: 400, height: 210, left: 40, right: 10, top: 22, bottom: 34 };
// Until somebody chooses, heights are logarithmic where one bar would hide all others, as the zeros behind a ReLU do.
const histogramState = { isLog: null };

function isLogarithmic(tensor) {
  const [most, next] = [...(tensor.values?.counts ?? [])].sort((one, other) => other - one);
  return histogramState.isLog ?? (next > 0 && most > 4 * next);
}

const lastEdge = (bins) => bins.low + bins.width * bins.counts.length;

// The ends of the range, beyond which values are clipped.
function clipPoints(tensor) {
  if (!isNumber(tensor.scale) || !isNumber(tensor.bits) || tensor.scale <= 0) return null;
  const isUnsigned = tensor.dtype.startsWith("uint");
  const levels = 2 ** tensor.bits;
  const least = (isUnsigned ? 0 : -levels / 2) - tensor.zero;
  return [least / tensor.scale, (least + levels - 1) / tensor.scale];
}

// What is drawn from left to right: all values, and the ends of the range unless they are far away.
function valueRange(tensor) {
  const both = [tensor.values, tensor.reference].filter(Boolean);
  let [low, high] = [Math.min(...both.map((bins) => bins.low)), Math.max(...both.map(lastEdge))];
  const clips = clipPoints(tensor);
  if (clips && clips[1] - clips[0] <= 4 * (high - low)) [low, high] = [Math.min(low, clips[0]), Math.max(high, clips[1])];
  const margin = (high - low) * 0.03 || 1;
  return [low - margin, high + margin];
}

function outline(bins, x, y, isClosed) {
  const floor = y(0);
  let path = `M${x(bins.low)} ${floor}`;
  bins.counts.forEach((number, index) => {
    path += `V${y(number)}H${x(bins.low + bins.width * (index + 1))}`;
  });
  return `${path}V${floor}${isClosed ? "Z" : ""}`;
}

// Lines at values that an integer can stand for; every 2nd, 4th, … where all would be too many.
function gridLines(tensor, low, high, x) {
  if (!isNumber(tensor.scale) || tensor.scale <= 0) return null;
  const clips = clipPoints(tensor);
  const [from, to] = clips ? [Math.max(low, clips[0]), Math.min(high, clips[1])] : [low, high];
  let every = 1;
  while (((to - from) * tensor.scale) / every > 48) every *= 2;
  const step = every / tensor.scale;
  let path = "";
  let number = 0;
  for (let index = Math.ceil(from / step); index * step <= to; index += 1, number += 1) {
    path += `M${x(index * step).toFixed(2)} ${HISTOGRAM.top}V${HISTOGRAM.height - HISTOGRAM.bottom}`;
  }
  return { path, every, number };
}

function clipMarks(tensor, low, high, x) {
  const clips = clipPoints(tensor) ?? [];
  return clips.filter((value) => value >= low && value <= high).flatMap((value, index) => {
    const place = x(value);
    const isLeft = place < HISTOGRAM.width / 2;
    return [
      svg("path", { class: "clip", d: `M${place} ${HISTOGRAM.top - 6}V${HISTOGRAM.height - HISTOGRAM.bottom}`, "data-clip": index }),
      svg("text", { class: "axis clip-label", x: place + (isLeft ? 3 : -3), y: HISTOGRAM.top - 9, "text-anchor": isLeft ? "start" : "end" }, `clips at ${real(value)}`),
    ];
  });
}

// The values of both models are shares of all values: the histograms may hold different numbers of them.
const shares = (bins) => {
  const all = bins.counts.reduce((sum, number) => sum + number, 0) || 1;
  return { ...bins, counts: bins.counts.map((number) => number / all / bins.width) };
};

function histogram(tensor) {
  if (!tensor.values?.counts.length) return el("p", { class: "empty" }, "There is no histogram of this tensor.");
  const [values, reference] = [shares(tensor.values), tensor.reference?.counts.length ? shares(tensor.reference) : null];
  const { width, height, left, right, top, bottom } = HISTOGRAM;
  const isLog = isLogarithmic(tensor);
  const [low, high] = valueRange({ ...tensor, reference });
  const most = Math.max(...values.counts, ...(reference?.counts ?? []), Number.MIN_VALUE);
  const least = Math.min(...[...values.counts, ...(reference?.counts ?? [])].filter((share) => share > 0), most) / 2;
  const x = (value) => left + ((value - low) / (high - low)) * (width - left - right);
  const part = (share) => (isLog ? (share <= 0 ? 0 : Math.log(share / least) / Math.log(most / least)) : share / most);
  const y = (share) => Number((height - bottom - part(share) * (height - top - bottom)).toFixed(2));
  const grid = gridLines(tensor, low, high, x);
  const levels = isLog ? [1, 0.1, 0.01, 0.001].filter((level) => level * most >= least) : [1, 0.5];
  const label = `Histogram of ${tensor.name}, ${tensor.q_format || tensor.dtype}, from ${real(tensor.low)} to ${real(tensor.high)}`;
  const image = svg(
    "svg",
    { class: "histogram", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    grid && svg("path", { class: "grid", d: grid.path, "data-lines": grid.number }),
    svg("path", { class: "values", d: outline(values, x, y, true) }),
    reference && svg("path", { class: "reference", d: outline(reference, x, y, false) }),
    svg("path", { class: "axis-line", d: `M${left} ${height - bottom}H${width - right}` }),
    levels.map((level) => svg("text", { class: "axis", x: left - 5, y: y(level * most) + 4, "text-anchor": "end" }, level === 1 ? "most" : level === 0.5 ? "half" : `1/${Math.round(1 / level)}`)),
    ticks(low, high, 5).map((value) => [
      svg("path", { class: "axis-line", d: `M${x(value)} ${height - bottom}v4` }),
      svg("text", { class: "axis", x: x(value), y: height - bottom + 16, "text-anchor": "middle" }, real(value)),
    ]),
    svg("text", { class: "axis", x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, "value"),
    clipMarks(tensor, low, high, x),
  );
  return el("figure", {}, image, el("figcaption", {}, histogramKey(tensor, grid, low, high)));
}

function histogramKey(tensor, grid, low, high) {
  const clips = clipPoints(tensor);
  const isOutside = clips && (clips[0] < low || clips[1] > high);
  return [
    el("span", { class: "key" }, el("span", { class: "swatch values", "aria-hidden": "true" }), "file"),
    tensor.reference && el("span", { class: "key" }, el("span", { class: "swatch reference", "aria-hidden": "true" }), "float model"),
    grid && el("span", { class: "key" }, el("span", { class: "swatch grid", "aria-hidden": "true" }), `grid: steps of ${real(1 / tensor.scale)}${grid.every > 1 ? `, one line per ${grid.every}` : ""}`),
    isOutside && el("span", { class: "key" }, `range ${real(clips[0])} to ${real(clips[1])}: wider than the image`),
  ].filter(Boolean);
}
