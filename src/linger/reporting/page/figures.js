// Numbers as people read them, with units.

const NONE = "–";
const isNumber = (value) => typeof value === "number" && !Number.isNaN(value);
const count = (value) => (isNumber(value) ? value.toLocaleString("en-GB") : NONE);
const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

function scaled(value, base, units) {
  let place = 0;
  while (Math.abs(value) >= base && place < units.length - 1) {
    value /= base;
    place += 1;
  }
  const digits = place === 0 || Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[place]}`.trim();
}

const big = (value) => (isNumber(value) ? scaled(value, 1000, ["", "k", "M", "G", "T"]) : NONE);
const bytes = (value) => (isNumber(value) ? scaled(value, 1024, ["B", "KiB", "MiB", "GiB"]) : NONE);

function percent(share) {
  if (!isNumber(share)) return NONE;
  const value = share * 100;
  if (value > 0 && value < 0.01) return "< 0.01 %";
  return `${value.toFixed(value >= 10 || value === 0 ? 0 : value >= 1 ? 1 : 2)} %`;
}

function decibels(value) {
  if (value === Infinity) return "no error";
  if (value === -Infinity) return "no signal";
  return isNumber(value) ? `${value.toFixed(1)} dB` : NONE;
}

// A figure of quality: one digit behind the point, and no 100.0 that is not one.
function figure(value, unit = "") {
  if (!isNumber(value)) return NONE;
  const text = value < 100 && value >= 99.95 ? value.toFixed(4).replace(/0+$/, "")
    : Math.abs(value) < 1 && value !== 0 ? value.toPrecision(3) : value.toFixed(1);
  return unit ? `${text} ${unit}` : text;
}

// A real number with as many digits as help.
const real = (value) => (isNumber(value) ? String(Number(value.toPrecision(5))).replace(/-/g, "−") : NONE);

const signed = (value, digits = 1) => (isNumber(value) && Number.isFinite(value) ? `${value > 0 ? "+" : value < 0 ? "−" : "±"}${Math.abs(value).toFixed(digits)}` : NONE);

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// The middle of a long name is the part that can be missed.
function shortened(text, length) {
  const letters = Array.from(text);
  if (letters.length <= length) return text;
  const half = Math.floor((length - 1) / 2);
  return `${letters.slice(0, length - 1 - half).join("")}…${letters.slice(-half).join("")}`;
}

// About `wanted` round numbers between two others, for an axis.
function ticks(low, high, wanted) {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span)) return [low];
  const rough = span / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const found = [];
  for (let index = Math.ceil(low / step); index * step <= high + step * 1e-9; index += 1) found.push(index * step);
  return found;
}
