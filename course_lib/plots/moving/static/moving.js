"use strict";
// Shows the still that the controls choose, and moves the shapes that it shares with the still before. All stills, with
// their places and numbers, come from Python; shapes.py says what a shape, a box and a lane are.
const figure = JSON.parse(document.getElementById("data").textContent);
const svg = document.querySelector("#figure svg"), form = document.getElementById("controls");
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const MOST_BUTTONS = 4, MOVE_MS = 450, SWEEP_MS = 9000, PAUSE_MS = 700;
const NARROWEST = 308;  // in pixels: on a narrower page, a figure shrinks, so that its texts do not overlap

function make(tag, attributes = {}, ...children) {
  const element = tag.startsWith("svg:") ? document.createElementNS(svg.namespaceURI, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// -- controls ---------------------------------------------------------------------------------------------------------

const chosen = figure.controls.map(control => control.start);

function choose(number, value) {
  chosen[number] = value;
  show();
}

function buttons({label, values, start}, number) {
  const group = make("fieldset", {}, make("legend", {}, label));
  values.forEach((value, place) => {
    const input = make("input", {type: "radio", name: number, value: place, ...place === start && {checked: ""}});
    input.oninput = () => choose(number, place);
    group.append(make("label", {}, input, make("span", {}, value)));
  });
  return group;
}

function slider({label, values, start}, number) {
  const input = make("input", {type: "range", min: 0, max: values.length - 1, value: start}), output = make("output");
  const say = () => {
    output.textContent = values[input.value];
    input.setAttribute("aria-valuetext", values[input.value]);
  };
  input.oninput = () => (say(), choose(number, Number(input.value)));
  say();
  return make("label", {class: "slider"}, label, input, output);
}

// -- stills -----------------------------------------------------------------------------------------------------------

function at({by, of}) {
  return of[by.map(number => chosen[number]).join()];
}

function shape([key, x, y, w, h, look, label = "", anchor = "start", start = 1, stop = 1], note = "") {
  return [key, {x, y, w, h, look, label, anchor, start, stop, note, shown: 1}];
}

function lane([key, name, y, h, boxes]) {
  let x = 0;
  return [shape([key, -1, y + h / 2 + 4, 0, 0, "word", name]), ...boxes.map(([box, until, look, label, note, start, stop]) => {
    const left = x;
    x = until;
    return shape([`${key} ${box}`, left, y, until - left, h, look, label, "middle", start, stop], note);
  })];
}

function isLane(row) {
  return Array.isArray(row[4]);
}

function still() {
  return new Map(figure.layers.flatMap(at).flatMap(row => isLane(row) ? lane(row) : [shape(row)]));
}

const drawn = new Map();  // by key: the elements of a shape
let width = 0, from = new Map(), to = new Map(), now = new Map(), began = 0, frame = 0;

function across(x) {
  return figure.left + x * (width - figure.left - figure.right);
}

// A number that stands at the start of a label counts from one label to the next.
function counted(before, after, part) {
  const [a, b] = [before, after].map(label => label.match(/^[\d.,]*\d/)?.[0]);
  if (!a || !b || before.slice(a.length) !== after.slice(b.length)) return after;
  const [x, y] = [a, b].map(number => Number(number.replaceAll(",", "")));
  const digits = Math.max(...[a, b].map(number => number.split(".")[1]?.length ?? 0));
  return (x + (y - x) * part).toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits}) + after.slice(b.length);
}

function mixed(before, after, part) {
  if (part === 1) return after;
  const shape = {...after};
  for (const name of ["x", "y", "w", "h", "start", "stop", "shown"]) shape[name] = before[name] + (after[name] - before[name]) * part;
  if (!after.w) shape.label = counted(before.label, after.label, part);
  return shape;
}

function draw(key, shape) {
  const look = figure.looks[shape.look], isText = figure.texts.includes(shape.look);
  if (!drawn.has(key)) {
    const parts = [make("svg:path"), make("svg:text")];
    drawn.set(key, [make("svg:g", {}, ...parts), ...parts]);
    drawing.append(drawn.get(key)[0]);
  }
  const [group, path, text] = drawn.get(key);
  if (group.look !== shape.look) {
    const {ink = "var(--ink)", ...box} = look, target = isText ? text : path;
    for (const [name, value] of Object.entries(target === text ? look : box)) target.setAttribute(name, value);
    if (target === path) text.setAttribute("fill", ink);
    group.look = shape.look;
  }
  group.setAttribute("opacity", shape.shown);
  if (isText) {
    const x = shape.x < 0 ? 0 : shape.x > 1 ? width : across(shape.x);
    place(text, x, shape.y, shape.anchor, shape.label);
    return;
  }
  const left = across(shape.x), right = across(shape.x + shape.w), foot = shape.y + shape.h;
  const [first, last] = [shape.start, shape.stop].map(part => foot - shape.h * part);
  path.setAttribute("d", `M${left} ${foot}V${first}L${right} ${last}V${foot}Z`);
  text.setAttribute("font-size", 11.5);
  const fits = shape.label.length * 7 + 4 <= right - left;
  place(text, (left + right) / 2, shape.y + shape.h / 2 + 4, "middle", fits ? shape.label : "");
}

function place(text, x, y, anchor, label) {
  text.setAttribute("x", x);
  text.setAttribute("y", y);
  text.setAttribute("text-anchor", anchor);
  if (text.textContent !== label) text.textContent = label;
}

function step(time) {
  const part = Math.min(1, (time - began) / MOVE_MS), eased = part * part * (3 - 2 * part);
  for (const [key, shape] of from) if (!to.has(key)) now.set(key, mixed(shape, {...shape, shown: 0}, eased));
  for (const [key, shape] of to) now.set(key, mixed(from.get(key) ?? {...shape, shown: 0}, shape, eased));
  if (part === 1) for (const key of [...now.keys()].filter(key => !to.has(key))) {
    now.delete(key);
    drawn.get(key)[0].remove();
    drawn.delete(key);
  }
  for (const [key, shape] of now) draw(key, shape);
  if (part < 1) frame = requestAnimationFrame(step);
  read();
}

function show() {
  from = new Map(now);
  to = still();
  document.getElementById("caption").textContent = at(figure.captions);
  cancelAnimationFrame(frame);
  began = document.timeline.currentTime - (calm.matches || !from.size ? MOVE_MS : 0);
  step(document.timeline.currentTime);
}

// -- the cursor -------------------------------------------------------------------------------------------------------

const drawing = make("svg:g"), reading = make("svg:g");
const time = make("input", {type: "range", "aria-label": "time", min: 0, max: 1, step: 0.01});
const BUTTON = 38, THUMB = 16;  // widths
const play = make("button", {type: "button", "aria-label": "Play"});
let position = 0.35, playing = 0;

// The lanes, and of each the box that the cursor crosses.
function crossed() {
  return figure.layers.flatMap(at).filter(isLane).map(row => {
    const boxes = lane(row).slice(1).map(([, box]) => box);
    return [row[1], boxes.findLast(box => box.x <= position && position <= box.x + box.w + 1e-3)];
  }).filter(([, box]) => box);
}

function read() {
  if (figure.cursor === null) return;
  const x = across(position), gutter = width - figure.right + 8, room = figure.right - 8, lanes = crossed();
  const most = Math.max(...[...to.values()].map(shape => Number(shape.note) || 0));
  reading.replaceChildren(make("svg:path", {d: `M${x} 0V${figure.height}`, stroke: "var(--ink)", "stroke-width": 1.5}));
  for (const [, box] of lanes) {
    const {y, h, note} = box, part = Math.min(1, (position - box.x) / box.w);
    const level = figure.cursor ? note / most : box.start + (box.stop - box.start) * part;
    const {ink, ...look} = figure.looks[figure.cursor || box.look];
    reading.append(
      make("svg:rect", {x: gutter, y, width: room, height: h, fill: "var(--shade)"}),
      make("svg:rect", {...look, x: gutter, y, width: room * level, height: h}),
      make("svg:text", {class: "read", x: gutter + room / 2, y: y + h / 2 + 4}, note));
  }
  time.value = position;
  time.setAttribute("aria-valuetext", lanes.map(([name, {note}]) => `${name} ${note}`).join(", "));
}

function moveTo(place) {
  position = Math.min(1, Math.max(0, place));
  read();
}

function pause() {
  cancelAnimationFrame(playing);
  playing = 0;
  play.textContent = "▶\ufe0e";
  play.setAttribute("aria-label", "Play");
}

function nextEdge() {
  return Math.min(1, ...[...to.values()].filter(({note, x}) => note && x > position + 1e-3).map(({x}) => x + 1e-4));
}

// Sweep over the figure. With less motion, jump from one edge of a box to the next.
function sweep() {
  if (position >= 1) moveTo(0);
  play.textContent = "❚❚";
  play.setAttribute("aria-label", "Pause");
  let last = document.timeline.currentTime;
  const on = time => {
    const past = time - last;
    if (!calm.matches || past > PAUSE_MS) {
      moveTo(calm.matches ? nextEdge() : position + past / SWEEP_MS);
      last = time;
    }
    if (position < 1) playing = requestAnimationFrame(on);
    else pause();
  };
  playing = requestAnimationFrame(on);
}

function addCursor() {
  time.style.margin = `0 ${figure.right - THUMB / 2}px 0 ${figure.left - BUTTON - THUMB / 2}px`;  // under the lanes' edges
  form.append(make("div", {class: "time slider"}, play, time));
  play.onclick = () => playing ? pause() : sweep();
  time.oninput = () => (pause(), moveTo(Number(time.value)));
  svg.parentElement.classList.add("cursor");
  svg.onpointermove = svg.onpointerdown = event => {
    if (playing && event.type === "pointermove") return;
    pause();
    const {left, width: shown} = svg.getBoundingClientRect();
    moveTo(((event.clientX - left) * width / shown - figure.left) / (width - figure.left - figure.right));
  };
  pause();
}

// -- the page around --------------------------------------------------------------------------------------------------

// The theme is that of the page around the frame: its letters are light, or dark. Without one, the reader's choice.
function theme() {
  try {
    const [r, g, b] = getComputedStyle(frameElement).color.match(/[\d.]+/g).map(Number);
    document.documentElement.style.colorScheme = 0.299 * r + 0.587 * g + 0.114 * b > 128 ? "dark" : "light";
  } catch { /* no frame, or one of a different origin */ }
}

function fit() {
  const fitting = Math.max(NARROWEST, svg.parentElement.clientWidth);
  if (fitting !== width) {
    width = fitting;
    svg.setAttribute("viewBox", `0 0 ${width} ${figure.height}`);
    now.clear();
    drawn.clear();
    drawing.replaceChildren();
    show();
  }
  try {
    frameElement.style.height = `${document.documentElement.offsetHeight}px`;
  } catch { /* the same */ }
}

form.append(...figure.controls.map((control, number) => (control.values.length > MOST_BUTTONS ? slider : buttons)(control, number)));
if (figure.cursor !== null) addCursor();
svg.replaceChildren(drawing, reading);
for (const name of ["width", "height"]) svg.removeAttribute(name);
svg.setAttribute("aria-hidden", "true");
theme();
try {
  new MutationObserver(() => setTimeout(theme, 100)).observe(parent.document.body, {attributes: true});
  parent.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTimeout(theme, 100));
} catch { /* the same */ }
new ResizeObserver(fit).observe(document.body);
fit();
