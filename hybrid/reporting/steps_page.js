"use strict";
const byId = (id) => document.getElementById(id);
const blocks = JSON.parse(byId("data").textContent);
const drawings = [...byId("drawn").children], choice = [...byId("blocks").querySelectorAll("button")];
let block = 0, step = 0, timer = 0;

function go(to) {
  step = Math.max(0, Math.min(blocks[block].length - 1, to));
  const now = blocks[block][step];
  drawings.forEach((each, index) => { each.style.display = index === block ? "" : "none"; });
  for (const each of drawings[block].querySelectorAll("[data-first]"))
    each.style.display = each.dataset.first <= step && step <= each.dataset.last ? "" : "none";
  choice.forEach((button, index) => button.setAttribute("aria-pressed", index === block));
  [...byId("source").children].forEach((line, index) => line.classList.toggle("now", index + 1 === now.line));
  byId("said").textContent = now.said;
  byId("threads").innerHTML = now.threads;  // escaped
}

function phase(direction) {
  const barriers = (at) => blocks[block][at]?.barriers;
  let to = step;
  do to += direction; while (barriers(to) === barriers(step));
  while (direction < 0 && to > 0 && barriers(to - 1) === barriers(to)) --to;
  go(to);
}

function play() {
  clearInterval(timer);
  timer = timer ? 0 : setInterval(() => { if (step + 1 < blocks[block].length) go(step + 1); else play(); }, 900);
  byId("play").textContent = timer ? "❚❚ pause" : "▶ play";
}

choice.forEach((button, index) => button.addEventListener("click", () => { block = index; go(0); }));
byId("before").addEventListener("click", () => go(step - 1));
byId("after").addEventListener("click", () => go(step + 1));
byId("phase-before").addEventListener("click", () => phase(-1));
byId("phase-after").addEventListener("click", () => phase(1));
byId("play").addEventListener("click", play);
document.addEventListener("keydown", (event) => {
  if (event.key === "ArrowRight") go(step + 1);
  if (event.key === "ArrowLeft") go(step - 1);
});
byId("drawn").hidden = false;  // without a script all steps would show at once
go(Number(new URLSearchParams(location.hash.slice(1)).get("step") || 1) - 1);
