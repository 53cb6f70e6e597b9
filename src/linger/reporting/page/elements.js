// Elements of the page. Texts come from model files: they go in as text nodes and attributes, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

// A name out of a file: kept in its own direction of writing, cut by the style sheet, whole on hover.
const named = (text, tag = "span") => el(tag, { class: "name", title: text }, text);

const button = (text, onclick, attributes = {}) => el("button", { type: "button", onclick, ...attributes }, text);

// The heading of a section with one sentence for newcomers; `tools` stand beside it.
function sectionHead(title, explanation, ...tools) {
  return [
    el("div", { class: "section-head" }, el("h2", {}, title), el("div", { class: "tools" }, tools)),
    el("p", { class: "explanation" }, explanation),
  ];
}

// A section without content is hidden, and left out of the contents.
function showSection(id, title, children) {
  const section = byId(id);
  section.replaceChildren(...(children ?? []).flat().filter(Boolean));
  section.hidden = !children;
  section.dataset.title = title;
  section.setAttribute("aria-label", title);
}

// At most `size` of many rows are in the page at a time, whatever the model.
function paged(rows, size, draw, { label = "rows", start = 0 } = {}) {
  const box = el("div");
  const pages = Math.max(1, Math.ceil(rows.length / size));
  function show(page, isMoved) {
    const first = page * size;
    const parts = [draw(rows.slice(first, first + size), first)];
    if (pages > 1) {
      const back = button("← Previous", () => show(page - 1, true), { disabled: page === 0 });
      const on = button("Next →", () => show(page + 1, true), { disabled: page === pages - 1 });
      const place = `${first + 1}–${Math.min(rows.length, first + size)} of ${rows.length} ${label}`;
      parts.push(el("div", { class: "pager" }, back, el("span", { class: "muted" }, place), on));
      // whoever turns pages with the keyboard keeps the focus
      if (isMoved) requestAnimationFrame(() => (on.disabled ? back : on).focus({ preventScroll: true }));
    }
    box.replaceChildren(...parts);
  }
  show(Math.min(pages - 1, Math.floor(start / size)), false);
  return box;
}

// A table in a box of its own that scrolls sideways; `numeric` columns are aligned to the right.
function table(caption, columns, rows) {
  const head = columns.map((column) => el("th", { scope: "col", class: column.numeric && "number" }, column.title));
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)),
  );
}

const cell = (content, numeric) => el("td", { class: numeric && "number" }, content ?? "");

const definitions = (pairs) =>
  el("dl", { class: "facts" }, pairs.filter((pair) => pair && pair[1] !== "" && pair[1] !== null && pair[1] !== undefined)
    .map(([term, value]) => [el("dt", {}, term), el("dd", {}, value)]));

// A bar from 0 to 1 behind a figure; the figure says what the length says.
function meter(share, kind = "") {
  const part = el("span", { class: `meter-part ${kind}` });
  part.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el("span", { class: "meter", "aria-hidden": "true" }, part);
}

// A sign beside the word: colors never stand alone.
const SIGNS = { good: "✓", warning: "!", bad: "✕", neutral: "·" };
const badge = (text, kind) => el("span", { class: `badge ${kind}` }, el("span", { "aria-hidden": "true" }, SIGNS[kind]), ` ${text}`);

function announce(text) {
  byId("announcer").textContent = text;
}
