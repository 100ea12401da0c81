"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const LARGEST = 40, SMALL = 32, FEW_THREADS = 16;
const byId = (id) => document.getElementById(id);
let block = 0, step = 0, timer = 0, marks = 2;  // marks: of a cell, at most

const threadName = (number) => (number % data.block[0]) + "," + Math.floor(number / data.block[0]);
const elementName = ({ name, columns }, number) => name + "[" + Math.floor(number / columns) + "][" + (number % columns) + "]";
const made = (tag, name, text) => {
  const element = document.createElement(tag);
  element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
};

function drawArrays() {
  const [a, b, c] = data.arrays, room = Math.min(document.documentElement.clientWidth, 900) - 48;
  const size = Math.min(LARGEST, Math.floor(room / (a.columns + c.columns)) - 1);
  document.documentElement.style.setProperty("--cell", size + "px");
  marks = size < SMALL ? 1 : 2;
  const place = byId("matrices"), shared = byId("shared");
  place.replaceChildren(made("div", ""), drawn(1), drawn(0), drawn(2));
  shared.replaceChildren(...data.arrays.slice(3).map((_, index) => drawn(index + 3)));
}

function drawn(number) {
  const array = data.arrays[number], box = made("div", ""), grid = made("div", "array");
  box.append(made("p", "name", array.name + (array.shared ? ", shared memory" : "")));
  grid.style.gridTemplateColumns = "repeat(" + array.columns + ", max-content)";
  for (let i = 0; i < array.rows * array.columns; ++i) {
    const cell = made("div", "cell");
    cell.id = "cell-" + number + "-" + i;
    cell.title = elementName(array, i) + (array.shared ? "" : ", number " + i + " in memory");
    grid.append(cell);
  }
  box.append(grid);
  return box;
}

// The state after the steps up to this one: shared elements, elements read, and the fraction of each sum.
function stateAt(steps, last) {
  const held = new Map(), read = new Set(), done = new Map(), all = new Map(), owner = new Map();
  const counts = data.arrays.length > 3 ? (array) => array >= 3 : (array) => array < 2;
  steps.forEach((one, index) => {
    for (const [thread, array, element, writes, stored] of one.touches) {
      const key = array + "-" + element;
      if (array === 2 && writes) owner.set(thread, element);
      if (!writes && counts(array)) {
        all.set(thread, (all.get(thread) || 0) + 1);
        if (index <= last) done.set(thread, (done.get(thread) || 0) + 1);
      }
      if (index > last) continue;
      if (!writes && array < 3) read.add(key);
      if (writes && array >= 3) held.set(key, stored);
    }
  });
  return { held, read, done, all, owner };
}

function show() {
  const { at, steps } = data.blocks[block], now = steps[step], state = stateAt(steps, step);
  for (const cell of document.querySelectorAll(".cell")) { cell.className = "cell"; cell.replaceChildren(); }
  for (const key of state.read) byId("cell-" + key).classList.add("was");
  for (const [key, what] of state.held) byId("cell-" + key).append(made("span", "held", what));
  for (const [thread, index] of state.owner) {
    const bar = made("span", "grown");
    bar.style.height = 100 * (state.done.get(thread) || 0) / Math.max(1, state.all.get(thread) || 0) + "%";
    byId("cell-2-" + index).append(bar);
  }
  const touched = new Map();
  for (const [thread, array, element] of now.touches) {
    const key = array + "-" + element;
    if (!touched.has(key)) touched.set(key, new Set());
    touched.get(key).add(thread);
  }
  for (const [key, threads] of touched) {
    const cell = byId("cell-" + key), some = [...threads].slice(0, marks);
    cell.classList.add("now");
    for (const thread of some) {
      const mark = made("span", "mark", threadName(thread) + (thread === some.at(-1) && threads.size > some.length ? "…" : ""));
      mark.style.background = data.colours[thread % data.colours.length];
      cell.append(mark);
    }
  }
  said(at, now, steps.length);
}

function said(at, now, count) {
  const barriers = now.barriers + (now.barriers === 1 ? " barrier" : " barriers") + " passed";
  byId("said").textContent = "Block (" + at + "), step " + (step + 1) + " of " + count + ", " + barriers + ", line " + now.line +
    (now.ahead ? ": " + threadName(now.touches[0][0]) + " runs ahead" : "");
  byId("source").replaceChildren(...data.source.map((text, index) =>
    made("span", index + 1 === now.line ? "now" : "", String(index + 1).padStart(3) + "  " + text + "\n")));
  const threads = [...new Set(now.touches.map((each) => each[0]))];
  const others = threads.length - FEW_THREADS;
  byId("threads").replaceChildren(...threads.slice(0, FEW_THREADS).map((thread) => {
    const mark = made("span", "mark", threadName(thread)), name = ([, array, element]) => elementName(data.arrays[array], element);
    mark.style.background = data.colours[thread % data.colours.length];
    const own = now.touches.filter((each) => each[0] === thread);
    const parts = [own.filter((each) => !each[3]), own.filter((each) => each[3])].map((some) => some.map(name).join(" "));
    const told = made("span", "told");
    told.append(mark, " " + parts[0] + (parts[1] ? " → " + parts[1] : ""));
    return told;
  }), others > 0 ? "and " + others + " more" : "");
  byId("blocks").querySelectorAll("button").forEach((button, index) => button.setAttribute("aria-pressed", index === block));
}

function go(to) { step = Math.max(0, Math.min(data.blocks[block].steps.length - 1, to)); show(); }

function phase(direction) {
  const steps = data.blocks[block].steps;
  let to = step;
  do to += direction; while (steps[to] && steps[to].barriers === steps[step].barriers);
  while (direction < 0 && steps[to - 1] && steps[to - 1].barriers === steps[to].barriers) --to;
  go(to);
}

function play() {
  clearInterval(timer);
  timer = timer ? 0 : setInterval(() => { if (step + 1 < data.blocks[block].steps.length) go(step + 1); else play(); }, 900);
  byId("play").textContent = timer ? "❚❚ pause" : "▶ play";
}

byId("blocks").append(made("span", "label", "blockIdx"));
data.blocks.forEach(({ at }, index) => {
  const button = made("button", "", at);
  button.addEventListener("click", () => { block = index; go(0); });
  byId("blocks").append(button);
});
byId("before").addEventListener("click", () => go(step - 1));
byId("after").addEventListener("click", () => go(step + 1));
byId("phase-before").addEventListener("click", () => phase(-1));
byId("phase-after").addEventListener("click", () => phase(1));
byId("play").addEventListener("click", play);
document.addEventListener("keydown", (event) => {
  if (event.key === "ArrowRight") go(step + 1);
  if (event.key === "ArrowLeft") go(step - 1);
});
addEventListener("resize", () => { drawArrays(); show(); });
drawArrays();
go(Number(new URLSearchParams(location.hash.slice(1)).get("step") || 1) - 1);
