"use strict";
const film = JSON.parse(document.getElementById("film").textContent);
const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const CATEGORIES = ["parameters", "optimizer", "gradients", "activations", "communication", "other"];

// -- the film ---------------------------------------------------------------------------------------------------------

// An event, as data.py packs it. `done` is 0 for a call that never ends, `line` for an unknown line.
function unpacked(row) {
  const [step, done = 0, name = 0, line = 0, held = 0, match = 0, members = 0, blocking = 0, sends = [],
    before = [], after = [], around = [], counters = [], chunk = 0] = row;
  const [kind, text, op, tensors] = film.names[name];
  const call = op === "send" || op === "recv" ? op : text;  // the peers of ranks differ
  const to = [];
  for (let i = 0; i < sends.length; i += 2) to.push({lane: sends[i], bytes: sends[i + 1]});
  return {step, done, kind, text, op, call, tensors, line, held: film.held[held], match, members: film.members[members],
    blocking, sends: to, before, after, counters, around: [...counters, ...around], chunk};
}

const lanes = film.lanes.map((lane, number) => ({...lane, number, events: lane.events.map(unpacked)}));
const steps = film.captions.length;
const failed = film.failure !== "";
const kept = lanes.some(lane => lane.events.some(event => event.before.length || event.around.length));  // values
const most = Math.max(1, ...film.held.map(total));
const ring = film.ring && lanes.length <= 8;
const weighed = lanes.some(lane => new Set(lane.events.slice(0, -1).map(event => event.held)).size > 1);  // bytes change

function total(held) {
  return Object.values(held).reduce((sum, bytes) => sum + bytes, 0);
}

// The event that a lane has come to at a step.
function at(lane, step) {
  let found = null;
  for (const event of lane.events) if (event.step <= step) found = event;
  return found;
}

function waits(event, step) {
  return event.kind === "call" && event.blocking && (event.done === 0 || event.done > step);
}

// What a lane does at a step: active, waiting, stopped, or idle, which is between two calls.
function state(lane, step) {
  const event = at(lane, step);
  if (!event) return "idle";
  if (event.kind === "end") return event.text === "returned" ? "idle" : event.text.startsWith("stopped in") ? "waiting" : "stopped";
  if (event.done === step || event.step === step && !waits(event, step)) return "active";
  return waits(event, step) ? "waiting" : "idle";
}

function missing(event, step) {
  return event.members.filter(number =>
    !lanes[number].events.some(other => other.match === event.match && other.step <= step));
}

function arrivals(lane, step) {  // calls that end at this step, also those that began earlier
  return lane.events.filter(event => event.kind === "call" && event.done === step);
}

function underway(lane, step) {
  return lane.events.filter(event => event.kind === "call" && !waits(event, step) && event.step <= step &&
    (event.done === 0 || event.done > step));
}

// -- words ------------------------------------------------------------------------------------------------------------

function inBytes(count) {
  for (const [size, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])
    if (count >= size) return `${Number((count / size).toPrecision(3))} ${unit}`;
  return `${count} B`;
}

function spans(numbers) {  // 0–2, 5
  const found = [];
  for (const number of numbers) {
    const last = found.at(-1);
    if (last && last[1] === number - 1) last[1] = number; else found.push([number, number]);
  }
  return found.map(([a, b]) => a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}–${b}`).join(", ");
}

function ranksOf(numbers) {
  return `${numbers.length > 1 ? "ranks" : "rank"} ${spans(numbers.map(number => lanes[number].rank))}`;
}

function status(lane, step) {
  const event = at(lane, step);
  if (!event) return "before its first call";
  if (event.kind === "end") return event.text;
  if (event.kind === "mark") return event.step === step ? `at the mark “${event.text}”` : `after the mark “${event.text}”`;
  if (waits(event, step)) {
    const absent = event.call === event.op ? [] : missing(event, step);  // a message's name has its peer
    return `waits in ${event.text}` + (absent.length ? ` for ${ranksOf(absent)}` : "");
  }
  if (event.done === step) return arrivals(lane, step).map(call => call.text).join(", ");
  return event.step === step ? `starts ${event.text}` : `goes on after ${event.text}`;
}

// -- elements ---------------------------------------------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function draw(parent, tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  parent.append(element);
  return element;
}

// -- the strip: all steps of all lanes -------------------------------------------------------------------------------

const LEFT = 74;  // room for the names of the lanes
const LETTER = 6.5;  // the width of a letter, about
let column = 20;

const middle = step => LEFT + (step - 0.5) * column;

function drawStrip() {
  const strip = $("strip"), width = strip.parentElement.clientWidth;
  const row = Math.max(5, Math.min(22, 260 / lanes.length)), top = 18, height = top + lanes.length * row + 6;
  const never = lanes.flatMap(lane => lane.events).filter(event => event.kind === "call" && !event.done);
  const right = row < 16 ? 8 : Math.max(8, ...never.map(event => event.text.length * LETTER));  // room for their names
  column = Math.max(2, Math.min(150, (width - LEFT - right) / steps));
  strip.replaceChildren();
  strip.setAttribute("viewBox", `0 0 ${width} ${height}`);
  strip.style.height = `${height}px`;
  const y = number => top + (number + 0.5) * row, r = Math.min(5, row / 3.2, column / 2.4);
  draw(strip, "rect", {id: "cursor", y: 0, height, width: column, rx: 3});
  const paths = {life: "", wait: "", flight: "", link: "", held: "", done: "", started: "", mark: "", stop: ""};
  const dot = (x, y) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
  const groups = new Map();
  for (const lane of lanes) {
    const here = y(lane.number), end = lane.events.at(-1);
    if (row >= 11 || lane.number % Math.ceil(12 / row) === 0)
      draw(strip, "text", {x: LEFT - 12, y: here + 4, class: "lane"}, lane.name);
    paths.life += `M${LEFT} ${here}H${middle(end.step)}`;
    for (const event of lane.events) {
      const x = middle(event.step), until = middle(event.done || steps);
      if (event.kind === "mark") paths.mark += `M${x} ${here - r}l${r} ${r}l${-r} ${r}l${-r} ${-r}z`;
      else if (event.kind === "end")
        paths[event.text === "returned" ? "life" : "stop"] += event.text === "returned"
          ? `M${x} ${here - r}v${2 * r}` : `M${x - r} ${here - r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}`;
      else {
        if (until > x) paths[waits(event, event.step) ? "wait" : "flight"] += `M${x} ${here}H${until}`;
        if (event.done) paths.done += dot(until, here);
        if (event.done !== event.step) paths[waits(event, event.step) ? "held" : "started"] += dot(x, here);
        if (!event.done && row >= 16) {
          const label = event.text + (event.tensors === "no tensor" ? "" : ` of ${event.tensors}`), place = until + r + 4;
          const fits = place + label.length * LETTER < width;
          draw(strip, "text", {x: place, y: here + 4, class: "never"}, fits ? label : event.text);
        }
        if (event.done && event.match) {
          const key = event.match;
          groups.set(key, [...groups.get(key) ?? [], {lane, event}]);
        }
      }
    }
  }
  for (const members of groups.values()) {
    const x = middle(members[0].event.done), ends = members.map(member => y(member.lane.number));
    const low = Math.min(...ends), high = Math.max(...ends);
    const bow = members[0].event.op === "send" || members[0].event.op === "recv" ? Math.min(column / 2.5, 14) : 0;
    if (members.length > 1) paths.link += `M${x} ${low}Q${x + 2 * bow} ${(low + high) / 2} ${x} ${high}`;
  }
  for (const [name, path] of Object.entries(paths)) if (path) draw(strip, "path", {class: name, d: path});
  drawLabels(strip);
}

function drawLabels(strip) {
  for (let step = 1; step <= steps; step++) {
    const found = new Set(lanes.flatMap(lane => lane.events.filter(event => event.step === step && event.kind !== "end"
      || event.done === step && event.kind === "call").map(event => event.op || event.text)));
    const text = found.size === 1 ? [...found][0] : found.size ? [...found].join(" ") : "";
    if (text && text.length * 5.6 < column) draw(strip, "text", {x: middle(step), y: 11, class: "op"}, text);
  }
}

// -- the code: where every rank is -----------------------------------------------------------------------------------

function drawCode() {
  for (const block of film.blocks) {
    const list = make("ol", {start: block.first});
    const text = block.text.length ? block.text : ["(its text is not known)"];
    text.forEach((line, index) => {
      const row = make("li", {}, make("span", {class: "here"}), make("code", {}, line || " "));
      row.dataset.number = block.first + index;
      list.append(row);
    });
    $("code").append(make("h2", {}, block.label), list);
    block.rows = new Map([...list.children].map(row => [Number(row.dataset.number), row]));
  }
}

function showCode(step) {
  const found = new Map();
  for (const lane of lanes) {
    let line = 0;  // an end without a line leaves the rank at its last one; the line of a mark is not known
    for (const event of lane.events) if (event.step <= step) line = event.kind === "mark" ? 0 : event.line || line;
    if (lane.events.at(-1).step > step || failed) found.set(line, [...found.get(line) ?? [], lane]);
  }
  let first = null;
  for (const block of film.blocks) {
    for (const row of block.rows.values()) {
      row.className = "";
      row.firstChild.textContent = "";
    }
    for (const [place, number] of Object.entries(block.places)) {
      const here = found.get(Number(place)), row = block.rows.get(number) ?? block.rows.values().next().value;
      if (!here || !row) continue;
      const states = here.map(lane => state(lane, step));
      row.className = ["stopped", "active", "waiting", "idle"].find(one => states.includes(one));
      row.firstChild.textContent = `${row.firstChild.textContent} ${spans(here.map(lane => lane.rank))}`.trim();
      row.firstChild.title = `rank ${row.firstChild.textContent}`;
      first ??= row;
    }
  }
  if (first) $("code").scrollTop = Math.max(0, first.offsetTop - $("code").clientHeight / 2);
}

// -- the ranks, side by side -----------------------------------------------------------------------------------------

function values(title, tensors, old, tint = "") {
  const box = make("div", {class: "values"}, make("b", {}, title));
  tensors.forEach(([name, text], index) => {
    const before = old?.[index]?.[1].split(" ") ?? null, row = make("span", {class: "tensor"});
    if (name) row.append(make("var", {}, name));
    text.split(" ").forEach((number, place) => {
      const changed = before && before[place] !== number;
      row.append(make("span", {class: changed ? "changed" : tint}, number || "empty"));
    });
    box.append(row);
  });
  return box;
}

// A chunk keeps its tint on its way.
const tint = call => call.chunk ? `tint t${(call.chunk - 1) % 8}` : "";

function bar(held) {
  const parts = CATEGORIES.filter(name => held[name]).map(name => ({name, bytes: held[name]}));
  const fill = make("div", {class: "fill"});
  for (const {name, bytes} of parts) {
    const piece = make("i", {class: name});
    piece.style.width = `${100 * bytes / most}%`;
    fill.append(piece);
  }
  const rows = parts.map(({name, bytes}) =>
    make("div", {}, make("i", {class: name}), make("span", {}, name), make("span", {}, inBytes(bytes))));
  return make("div", {class: "held"}, make("div", {class: "total"}, make("b", {}, "holds"), inBytes(total(held))), fill, ...rows);
}

function arrived(call) {
  const amounts = call.sends.map(({lane: to, bytes}) => `${inBytes(bytes)} to ${to < 0 ? "another rank" : `rank ${lanes[to].rank}`}`);
  const same = call.before.length === call.after.length && call.before.every(([name], i) => name === call.after[i][0]);
  const sent = call.op === "send" && call.before.length > 0;
  const [before, after] = {send: [`sends ${amounts}`, ""], recv: ["", "receives"]}[call.op] ?? ["before", "after"];
  const parts = sent ? [] : amounts.map(text => make("p", {}, `sends ${text}`));
  if (call.before.length) parts.push(values(before, call.before, null, tint(call)));
  if (call.after.length) parts.push(values(after, call.after, same ? call.before : null, tint(call)));
  return parts;
}

// The same variables at the call before, to show which of them have changed.
function earlier(lane, event, variables) {
  const past = lane.events[lane.events.indexOf(event) - 1];
  return variables.map(([name, text]) => past?.around.find(other => other[0] === name) ?? [name, text]);
}

function shapes(calls) {  // of tensors whose values are not shown
  const texts = calls.filter(call => !call.before.length && !call.after.length).map(call => call.tensors);
  return [...new Set(texts)].filter(text => text && text !== "no tensor").map(text => make("p", {class: "quiet"}, text));
}

function card(lane, step) {
  const event = at(lane, step), box = make("section", {class: `card ${state(lane, step)}`, "aria-label": lane.name});
  box.append(make("h2", {}, lane.name), make("p", {class: "status"}, status(lane, step)));
  if (!event) return box;
  if (apart(step)) box.append(make("p", {class: "line"}, film.lines[event.line - 1] ?? ""));
  const calls = arrivals(lane, step);
  for (const call of calls) box.append(...arrived(call));
  if (event.kind === "call" && event.done !== step && event.before.length) box.append(values("before", event.before, null, tint(event)));
  const named = new Set([event, ...calls].flatMap(call => [...call.before, ...call.after]).map(([name]) => name));
  const variables = event.around.filter(([name]) => !named.has(name));
  if (variables.length) box.append(values("variables", variables, earlier(lane, event, variables)));
  box.append(...shapes(event.kind === "call" && !calls.includes(event) ? [...calls, event] : calls));
  for (const call of underway(lane, step))
    if (call !== event) box.append(make("p", {class: "quiet"}, `under way: ${call.text}`));
  if (event.kind === "end" && event.tensors) box.append(make("p", {class: "line"}, make("code", {}, event.tensors)));
  if (weighed && total(event.held)) box.append(bar(event.held));
  return box;
}

// Whether ranks are at different lines. The code beside the cards shows a line that all are at.
function apart(step) {
  return new Set(lanes.map(lane => at(lane, step)?.line)).size > 1;
}

let shown = new Set(firstShown());

function firstShown() {
  if (lanes.length <= 8) return lanes.keys();
  const kinds = new Map();  // of a failed run, one rank of each state and line
  for (const lane of lanes) {
    const end = lane.events.at(-1), key = `${end.text} ${end.line}`;
    if (!kinds.has(key)) kinds.set(key, lane.number);
  }
  const first = failed ? [...kinds.values()] : [];
  return [...first, ...lanes.keys()].filter((number, i, all) => all.indexOf(number) === i).slice(0, 4).sort((a, b) => a - b);
}

// A row stays when its cards change, and with it the focus and the place that it is scrolled to.
const cardRow = make("div", {class: "row", tabindex: 0, role: "group", "aria-label": "Ranks"});
$("ranks").append(cardRow);

function showRanks(step, moves = false) {
  const theirs = lanes.filter(lane => shown.has(lane.number));
  cardRow.style.setProperty("--n", theirs.length);
  cardRow.classList.toggle("ring", ring);
  cardRow.replaceChildren(...theirs.map(lane => card(lane, step)));
  const width = cardRow.scrollWidth, high = ring ? 216 : 62, look = `width: ${width}px; height: ${high}px`;
  const svg = draw(cardRow, "svg", {class: "arcs", "aria-hidden": true, viewBox: `0 0 ${width} ${high}`, style: look});
  cardRow.prepend(svg);
  const travelling = ring ? drawRing(svg, width, step) : drawArcs(svg, high, theirs, step);
  for (const [path, call, text] of travelling) travel(svg, path, call, text, moves && call.done === step);
  cardRow.style.minHeight = `${cardRow.offsetHeight}px`;  // what is below the cards keeps its place
}

// The arcs above the cards along which bytes go at a step: path, call and label of each.
function drawArcs(svg, high, theirs, step) {
  const cards = [...cardRow.children].slice(1), found = [];
  const x = cards.map(card => card.offsetLeft - cardRow.offsetLeft + card.offsetWidth / 2);
  theirs.forEach((lane, from) => arrivals(lane, step).forEach(call => call.sends.forEach(({lane: receiver, bytes}) => {
    const to = theirs.findIndex(other => other.number === receiver);
    if (to < 0) return;
    const side = Math.sign(to - from), start = x[from] + 8 * side, end = x[to] - 8 * side, far = Math.abs(to - from) > 1;
    const back = !far && side < 0;  // below an arc in the other direction
    const top = far ? 12 : back ? 44 : 28, control = high - 8 - (high - 8 - top) * 4 / 3;
    const path = draw(svg, "path", {d: `M${start} ${high - 2}C${start} ${control} ${end} ${control} ${end} ${high - 12}`});
    found.push([path, call, cards[0].offsetWidth > 90 ? label(call, bytes) : ""]);
  })));
  return found;
}

// The ranks on a ring, and what each has received last: at its end, what it returned.
function drawRing(svg, width, step) {
  const rx = Math.min(width / 2 - 56, 250), ry = 70, n = lanes.length;
  const [x, y] = [i => width / 2 + rx * Math.cos(angle(i)), i => ry + 42 + ry * Math.sin(angle(i))];
  const angle = i => Math.PI * ((2 * i - 1) / n - 0.5), found = [], paths = [];
  for (let i = 0; i < n; i++) {
    const used = arrivals(lanes[i], step).some(call => call.op === "send");
    const d = `M${x(i)} ${y(i)}A${rx} ${ry} 0 0 1 ${x(i + 1)} ${y(i + 1)}`;
    paths.push(draw(svg, "path", {class: used ? "" : "unused", d}));
    const between = angle(i + 0.5), turn = Math.atan2(ry * Math.cos(between), -rx * Math.sin(between)) * 180 / Math.PI;
    draw(svg, "path", {class: used ? "head" : "head unused", d: "M-5 -5L6 0L-5 5z",
      transform: `translate(${x(i + 0.5)} ${y(i + 0.5)}) rotate(${turn})`});
  }
  for (const lane of lanes) {
    const [left, top] = [x(lane.number), y(lane.number)], end = at(lane, step)?.kind === "end" && at(lane, step);
    draw(svg, "rect", {class: `node ${state(lane, step)}`, x: left - 52, y: top - 34, width: 104, height: 52, rx: 8});
    draw(svg, "text", {class: "name", x: left, y: top - 18}, lane.name);
    const from = (lane.number + n - 1) % n, call = lanes[from].events.findLast(
      event => event.op === "send" && event.done && event.done <= step);
    const result = end ? end.tensors.replace(/^tensor\((.*)\)$/, "$1") : "";
    if (call) found.push([paths[from], call, result && result.length <= 16 ? result : label(call, call.sends[0].bytes)]);
  }
  return found;
}

function label(call, bytes) {  // the value, if it is one and short
  const value = call.op === "send" && call.before.length === 1 && call.before[0][1];
  return value && value.length <= 14 ? value : inBytes(bytes);
}

// Put a label at the end of a path, to which it slides if it moves and the reader does not mind.
function travel(svg, path, call, text, moves) {
  const chip = draw(svg, "g", {class: `chip ${tint(call)}`}), width = Math.max(16, text.length * 7.5 + 10);
  draw(chip, "rect", {x: -width / 2, y: -10, width, height: 20, rx: 4});
  draw(chip, "text", {y: 4}, text);
  const frames = Array.from({length: 25}, (_, i) => path.getPointAtLength(path.getTotalLength() * i / 24))
    .map(({x, y}) => ({transform: `translate(${x}px, ${y}px)`}));
  chip.style.transform = frames.at(-1).transform;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (moves && !still) chip.animate(frames, {duration: 600, easing: "ease-in-out"});
}

// -- comparing --------------------------------------------------------------------------------------------------------

function difference(one, other) {
  const passes = [["call", "tensors", "line"], ["after"]];
  for (const [pass, fields] of passes.entries()) {
    const agreed = new Set();  // counters that both had equal
    for (let i = 0; i < Math.min(one.events.length, other.events.length); i++) {
      const a = one.events[i], b = other.events[i];
      const field = fields.find(name => JSON.stringify(a[name]) !== JSON.stringify(b[name])) ?? counter(a, b, agreed);
      if (field) return {pass, step: Math.min(a.step, b.step), text: `${has(one, a, field)}; ${has(other, b, field)}.`};
    }
  }
  return null;
}

// The name of a counter that differs, and did not before: one rank has skipped an iteration of a loop.
function counter(a, b, agreed) {
  for (const [name, value] of a.counters) {
    const [, theirs] = b.counters.find(other => other[0] === name) ?? [];
    if (theirs === value) agreed.add(name);
    else if (theirs && agreed.has(name)) return name;
  }
}

function has(lane, event, field) {
  const line = film.lines[event.line - 1], where = line ? ` (${line})` : "";
  const [, count] = event.counters.find(([name]) => name === field) ?? [];
  if (count) return `${lane.name}: ${field} = ${count} at ${event.text}${where}`;
  if (field === "before" || field === "after")
    return `${lane.name}: ${event[field].map(([, text]) => text).join(", ") || "nothing"} ${field} ${event.text}${where}`;
  return `${lane.name}: ${event.text}${field === "tensors" ? ` of ${event.tensors}` : ""}${where}`;
}

// The earliest difference of pairs of lanes. Results differ by design, such as shards: they count if no call differs.
function earliest(pairs) {
  const found = pairs.map(pair => ({pair, ...difference(...pair)})).filter(one => one.step);
  return found.sort((a, b) => a.pass - b.pass || a.step - b.step)[0];
}

function show(found) {
  $("answer").textContent = `First difference${kept ? "" : " in calls"}, at step ${found.step}: ${found.text}`;
  for (const lane of found.pair) shown.add(lane.number);
  chips();
  stepTo(found.step);
}

function chips() {
  if (lanes.length <= 4) return;
  $("chips").replaceChildren("Ranks shown", ...lanes.map(lane => {
    const button = make("button", {"aria-pressed": shown.has(lane.number), "aria-label": lane.name}, lane.rank);
    button.onclick = () => {
      if (!shown.delete(lane.number)) shown.add(lane.number);
      button.setAttribute("aria-pressed", shown.has(lane.number));
      showRanks(now);
    };
    return button;
  }));
}

// -- playing ----------------------------------------------------------------------------------------------------------

let now = failed ? steps : 1, timer = 0;

function go(step, moves = step === now + 1) {
  now = Math.max(1, Math.min(steps, step));
  $("slider").value = now;
  $("slider").setAttribute("aria-valuetext", `step ${now} of ${steps}: ${film.captions[now - 1]}`);
  $("step").textContent = `step ${now} of ${steps}`;
  $("caption").textContent = film.captions[now - 1] || "The ranks compute.";
  $("cursor").setAttribute("x", LEFT + (now - 1) * column);
  for (const [id, there] of [["back", 1], ["next", steps]]) $(id).setAttribute("aria-disabled", now === there);
  showCode(now);
  showRanks(now, moves);
}

function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => now < steps ? go(now + 1) : play(false), 1200) : 0;
  if (on) go(now === steps ? 1 : now, true);
  $("play").classList.toggle("playing", on);
  $("play").setAttribute("aria-label", on ? "Pause" : "Play");
}

function stepTo(step) {
  play(false);
  go(step);
}

const KEYS = {ArrowLeft: () => stepTo(now - 1), ArrowRight: () => stepTo(now + 1), Home: () => stepTo(1),
  End: () => stepTo(steps), " ": () => play(!timer)};

document.addEventListener("keydown", event => {
  const typing = event.target.closest("input") || event.key === " " && event.target.closest("button");
  if (typing || !KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  KEYS[event.key]();
});

// -- the page around --------------------------------------------------------------------------------------------------

// The theme is that of the page around the frame: its letters are light, or dark. Without one, the reader's choice.
const dark = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  let isDark = dark.matches;
  try {
    const [r, g, b] = getComputedStyle(frameElement).color.match(/[\d.]+/g).map(Number);
    isDark = 0.299 * r + 0.587 * g + 0.114 * b > 128;
  } catch { /* no frame, or one of a different origin */ }
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}

let width = 0, height = 0;

// Redraw when the width changes. Let the frame only grow, so that what follows it in the notebook stays in its place.
function fit() {
  if (document.body.clientWidth !== width) {
    width = document.body.clientWidth;
    height = 0;
    cardRow.style.minHeight = "";
    drawStrip();
    go(now);
  }
  height = Math.max(height, document.documentElement.offsetHeight);
  try {
    frameElement.style.height = `${height}px`;
  } catch { /* the same */ }
}

function withCode(text) {  // what a message has between backticks becomes code
  return text.split(/`([^`]+)`/).map((part, place) => place % 2 ? make("code", {}, part) : part);
}

// Pairs of ranks that begin with the same call: others have different parts to play from the start.
function alike() {
  const firsts = new Map();
  return lanes.flatMap(lane => {
    const {call, line} = lane.events[0], key = `${call} ${line}`;
    if (!firsts.has(key)) firsts.set(key, lane);
    return firsts.get(key) === lane ? [] : [[firsts.get(key), lane]];
  });
}

function showFailure() {
  const [headline, ...more] = film.failure.split("\n"), next = more.filter(line => line.startsWith("Next:"));
  $("failure").append(make("b", {}, ...withCode(headline.slice(0, 1).toUpperCase() + headline.slice(1))),
    ...next.map(line => make("span", {}, ...withCode(line))));
  const found = earliest(alike());
  if (!found) return;
  const button = make("button", {}, `Step ${found.step}: where ranks first differ`);
  button.onclick = () => show(found);
  $("failure").append(button);
}

function begin() {
  theme();
  dark.addEventListener("change", theme);
  try {
    new MutationObserver(() => setTimeout(theme, 100)).observe(parent.document.body, {attributes: true});
  } catch { /* the same */ }
  $("slider").max = steps;
  $("slider").oninput = () => stepTo(Number($("slider").value));
  $("back").onclick = () => stepTo(now - 1);
  $("next").onclick = () => stepTo(now + 1);
  $("play").onclick = () => play(!timer);
  for (const button of document.querySelectorAll(".buttons button")) button.setAttribute("aria-label", button.title);
  const counted = (count, noun) => `${count} ${noun}${count > 1 ? "s" : ""}`;
  $("title").textContent = `Replay of ${counted(lanes.length, "rank")}, in ${counted(steps, "step")}`;
  $("failure").hidden = !failed;
  if (failed) showFailure();
  document.body.classList.toggle("has-failed", failed);
  $("notes").textContent = [...film.notes, "Keys: space plays, ← and → step, Home and End."].join(" ");
  $("strip").onpointerdown = $("strip").onpointermove = event => {
    if (event.buttons) stepTo(Math.ceil((event.clientX - $("strip").getBoundingClientRect().left - LEFT) / column));
  };
  drawCode();
  chips();
  new ResizeObserver(fit).observe(document.body);
  fit();
}

begin();
