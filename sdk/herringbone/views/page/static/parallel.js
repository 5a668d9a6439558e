// Parallel coordinates: a vertical axis for each tuned value and for the objective, a line for each trial.

import { h, shownNumber, svg } from "./dom.js";

const WIDTH = 1000, HEIGHT = 300, TOP = 34, BOTTOM = 24, SIDE = 60;
const LOG = new Set(["Logarithmic"]);

/** Return where a value stands on an axis, 0 at the bottom and 1 at the top; null for a value that is not on it. */
export function place(axis, value) {
  if (value === null || value === undefined) return null;
  if (axis.values) {
    const at = axis.values.indexOf(String(value));
    if (at < 0) return null;
    return axis.values.length === 1 ? 0.5 : at / (axis.values.length - 1);
  }
  let [low, high, number] = [axis.low, axis.high, Number(value)];
  if (!Number.isFinite(number)) return null;
  if (LOG.has(axis.scaling) && low > 0) [low, high, number] = [Math.log(low), Math.log(high), Math.log(Math.max(number, Number.MIN_VALUE))];
  // 1 - x is what this scaling spreads out: values near 1, as of a momentum.
  if (axis.scaling === "ReverseLogarithmic" && high < 1) [low, high, number] = [-Math.log(1 - low), -Math.log(1 - high), -Math.log(Math.max(1 - number, Number.MIN_VALUE))];
  if (high <= low) return 0.5;
  return Math.min(1, Math.max(0, (number - low) / (high - low)));
}

/** Return the axes of a search: its ranges, the resource where trials differ in it, and the objective. */
export function axesOf(tuning) {
  const axes = tuning.ranges.map((range) => ({ ...range, of: (trial) => trial.values[range.name] }));
  const resources = tuning.trials.map((trial) => trial.resource).filter((value) => value !== null);
  if (new Set(resources).size > 1) {
    axes.push({ name: tuning.resource_name ?? "resource", low: Math.min(...resources), high: Math.max(...resources), scaling: "Logarithmic", of: (trial) => trial.resource });
  }
  const results = tuning.trials.map((trial) => trial.objective).filter((value) => value !== null);
  axes.push({ name: tuning.metric, low: Math.min(...results), high: Math.max(...results), objective: true, of: (trial) => trial.objective });
  return results.length ? axes : axes.slice(0, -1);
}

/** Return the quality of each trial, by its place among the others: 1 is the best one, 0 the worst, null none. */
export function qualities(tuning) {
  const sign = tuning.maximize ? 1 : -1;
  const order = [...new Set(tuning.trials.map((trial) => trial.objective).filter((value) => value !== null))].sort((a, b) => sign * (a - b));
  return new Map(tuning.trials.map((trial) => [trial.number, trial.objective === null ? null
    : order.length === 1 ? 1 : order.indexOf(trial.objective) / (order.length - 1)]));
}

/** The chart; `chosen` gets the numbers of the trials within the ranges that the user drags over axes, null for all. */
export class ParallelChart {
  constructor(chosen) {
    this.chosen = chosen;
    this.ranges = new Map();
    this.note = h("span", { class: "where" });
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "parallel", role: "img" });
    this.element = h("figure", { class: "card wide" },
      h("figcaption", {}, h("span", { class: "title" }, "Tuned values"), this.note), this.drawing);
    this.drawing.addEventListener("pointerdown", (event) => this.begin(event));
    this.drawing.addEventListener("pointermove", (event) => this.move(event));
    this.drawing.addEventListener("pointerup", () => this.end());
    this.drawing.addEventListener("dblclick", () => this.clear());
  }

  show(tuning) {
    // What is dragged over now would be taken out of the drawing.
    if (this.dragged) return;
    this.tuning = tuning;
    this.axes = axesOf(tuning);
    const step = (WIDTH - 2 * SIDE) / Math.max(1, this.axes.length - 1);
    this.axes.forEach((axis, at) => Object.assign(axis, { x: this.axes.length === 1 ? WIDTH / 2 : SIDE + at * step, room: Math.floor(step / 7) }));
    const quality = qualities(tuning);
    // The best lines last, so that they lie above the others.
    const trials = [...tuning.trials].sort((a, b) => (quality.get(a.number) ?? -1) - (quality.get(b.number) ?? -1));
    this.lines = trials.map((trial) => this.line(trial, quality.get(trial.number)));
    this.marks = this.axes.map(() => svg("rect", { class: "chosen", width: 12, visibility: "hidden" }));
    this.drawing.setAttribute("aria-label", `Parallel coordinates of ${tuning.trials.length} trials over ${this.axes.map((axis) => axis.name).join(", ")}`);
    this.drawing.replaceChildren(...this.lines.map((line) => line.element), ...this.axes.map((axis) => axisOf(axis)), ...this.marks);
    this.choose();
  }

  line(trial, quality) {
    const points = this.axes.map((axis) => [axis.x, place(axis, axis.of(trial))]).filter(([, at]) => at !== null).map(([x, at]) => [x, yOf(at)]);
    const path = points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    const kind = trial.number === this.tuning.best ? "best" : quality === null ? (trial.over ? "none" : "live") : "";
    const label = trialText(trial, this.tuning);
    const element = svg("path", { d: path, class: `trial ${kind}`, "data-trial": trial.number }, svg("title", {}, label));
    if (kind === "") {
      element.style.setProperty("stroke", `color-mix(in srgb, var(--line-0) ${Math.round(100 * quality)}%, var(--line-7))`);
      element.style.setProperty("--weight", (0.3 + 0.65 * quality).toFixed(2));
    }
    element.addEventListener("pointerenter", () => { if (!this.dragged) this.light(trial.number, label); });
    element.addEventListener("pointerleave", () => this.light(null, ""));
    return { trial, element };
  }

  /** Lift one trial's line, as the table does for the row under the pointer. */
  light(number, label) {
    this.drawing.classList.toggle("lit", number !== null);
    for (const { trial, element } of this.lines) element.classList.toggle("on", trial.number === number);
    this.note.textContent = label || this.summary || "drag over an axis to choose trials";
  }

  begin(event) {
    // A finger scrolls the page.
    if (event.pointerType === "touch") return;
    const [x, y] = this.at(event);
    const axis = this.axes.reduce((near, other) => (Math.abs(other.x - x) < Math.abs(near.x - x) ? other : near));
    if (Math.abs(axis.x - x) > 30) return;
    this.dragged = { axis, from: y, moved: false };
    this.drawing.setPointerCapture(event.pointerId);
    event.preventDefault();
  }

  move(event) {
    if (!this.dragged) return;
    const { axis, from } = this.dragged, to = this.at(event)[1];
    if (Math.abs(from - to) < 4 && !this.dragged.moved) return;
    this.dragged.moved = true;
    const [low, high] = [Math.max(from, to), Math.min(from, to)].map((y) => (HEIGHT - BOTTOM - y) / (HEIGHT - TOP - BOTTOM));
    this.ranges.set(axis.name, [low, high]);
    this.choose();
  }

  end() {
    if (!this.dragged) return;
    // A click takes the range of its axis away.
    if (!this.dragged.moved) this.ranges.delete(this.dragged.axis.name);
    this.dragged = null;
    this.choose();
  }

  clear() {
    this.ranges.clear();
    this.choose();
  }

  choose() {
    const inside = (trial) => this.axes.every((axis) => {
      const range = this.ranges.get(axis.name), at = place(axis, axis.of(trial));
      return !range || (at !== null && range[0] <= at && at <= range[1]);
    });
    const numbers = new Set();
    for (const { trial, element } of this.lines) {
      if (inside(trial)) numbers.add(trial.number);
      element.classList.toggle("off", !inside(trial));
    }
    this.axes.forEach((axis, at) => {
      const range = this.ranges.get(axis.name), mark = this.marks[at];
      mark.setAttribute("visibility", range ? "visible" : "hidden");
      if (!range) return;
      mark.setAttribute("x", axis.x - 6);
      mark.setAttribute("y", yOf(range[1]));
      mark.setAttribute("height", Math.max(1, yOf(range[0]) - yOf(range[1])));
    });
    this.summary = this.ranges.size ? `${numbers.size} of ${this.lines.length} trials; double-click shows all` : "";
    this.light(null, "");
    this.chosen(this.ranges.size ? numbers : null);
  }

  /** The place of the pointer in the drawing's own units. */
  at(event) {
    const box = this.drawing.getBoundingClientRect();
    return [(event.clientX - box.left) * WIDTH / box.width, (event.clientY - box.top) * HEIGHT / box.height];
  }
}

function yOf(at) {
  return HEIGHT - BOTTOM - at * (HEIGHT - TOP - BOTTOM);
}

function axisOf(axis) {
  const ends = axis.values ? axis.values.map((value, at) => [value, axis.values.length === 1 ? 0.5 : at / (axis.values.length - 1)])
    : [[shownNumber(axis.low), 0], [shownNumber(axis.high), 1]];
  const log = axis.scaling === "Logarithmic" ? " (log)" : axis.scaling === "ReverseLogarithmic" ? " (reverse log)" : "";
  return svg("g", { class: axis.objective ? "axis objective" : "axis" },
    svg("line", { x1: axis.x, x2: axis.x, y1: TOP, y2: HEIGHT - BOTTOM }),
    svg("text", { x: axis.x, y: 12, class: "axis-name" }, short(`${axis.name}${log}`, Math.max(6, axis.room))),
    ends.map(([text, at]) => (axis.values ? svg("text", { x: axis.x + 6, y: yOf(at) + 4, class: "tick" }, short(text, 16))
      : svg("text", { x: axis.x, y: at ? TOP - 6 : HEIGHT - 8, class: "end" }, text))));
}

function short(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

export function valueText(value) {
  return typeof value === "number" ? shownNumber(value) : String(value);
}

/** A trial in one line: its number, its values and its result. */
export function trialText(trial, tuning) {
  const values = Object.entries(trial.values).map(([name, value]) => `${name} ${valueText(value)}`).join(", ");
  const result = trial.objective === null ? trial.state : `${tuning.metric} ${shownNumber(trial.objective)}`;
  return `trial ${trial.number}: ${result}; ${values}`;
}
