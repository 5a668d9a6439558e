// Charts: thin wrappers around uPlot, which draws on a canvas. Colours come from the style sheet, so that they follow the
// scheme of the system.

import { NONE, h, shownNumber, shownSpan } from "./dom.js";

const HEIGHT = 180;
const COLOURS = 8;
const MAX_LEGEND = 8;
const charts = new Map();

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function colour(index) {
  return css(`--line-${index % COLOURS}`);
}

function faint(text) {
  return `${text}40`;
}

/** Smooth values as TensorBoard does: an exponential mean, corrected for its start. */
export function smoothed(values, weight) {
  let sum = 0, count = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    sum = weight * sum + (1 - weight) * value;
    count += 1;
    return sum / (1 - weight ** count);
  });
}

function ticks(format) {
  return (chart, splits) => splits.map((value) => (value === null ? "" : format(value)));
}

/** Return the columns that uPlot draws: one x for all lines. */
function columns(lines, weight) {
  const tables = lines.filter((line) => line.x.length).map((line) => [line.x, line.y]);
  if (!tables.length) return [[]];
  // A value that is not finite is null and stays a gap; a point that another line has is none.
  const joined = tables.length === 1 ? tables[0] : uPlot.join(tables);
  if (!weight) return joined;
  return [joined[0], ...joined.slice(1).flatMap((values) => [values, smoothed(values, weight)])];
}

function options(chart) {
  const { lines, spec, width } = chart;
  const text = css("--quiet"), grid = css("--grid");
  const axis = { stroke: text, font: "11px system-ui, sans-serif", grid: { stroke: grid, width: 1 }, ticks: { show: false } };
  const drawn = lines.filter((line) => line.x.length);
  const series = drawn.flatMap((line) => {
    const stroke = colour(line.colour), base = { spanGaps: false, points: { show: line.x.length === 1 } };
    if (line.kind === "dots") return [{ stroke, paths: () => null, points: { show: true, size: 7, width: 1, fill: stroke, stroke: css("--card") } }];
    if (line.kind === "steps") return [{ ...base, stroke, width: 1.6, paths: uPlot.paths.stepped({ align: 1 }) }];
    if (!spec.smoothing) return [{ ...base, stroke, width: 1.6, dash: line.dash }];
    return [{ ...base, stroke: faint(stroke), width: 1 }, { ...base, stroke, width: 1.6, dash: line.dash }];
  });
  return {
    width, height: HEIGHT,
    legend: { show: false },
    padding: [8, 10, 0, 0],
    cursor: { sync: { key: spec.group }, points: { size: 6 }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { distr: spec.log ? 3 : 1, range: spec.log ? undefined : range(spec) } },
    axes: [
      { ...axis, size: 26, gap: 3, space: 70, values: ticks(spec.xFormat), label: spec.xTitle ?? spec.xName, labelSize: 16, labelGap: 0, labelFont: axis.font,
        ...(spec.incrs ? { incrs: spec.incrs } : {}) },
      { ...axis, size: widthOf, gap: 4, values: ticks(spec.yFormat) },
    ],
    series: [{}, ...series],
    hooks: { setCursor: [(plot) => showValues(chart, plot.cursor.idx)] },
  };
}

/** The room for the labels of the y axis: the longest one of 11 px letters. */
function widthOf(plot, labels) {
  return labels ? Math.max(30, 10 + 6.3 * Math.max(...labels.map((label) => label.length))) : 40;
}

function range(spec) {
  return (plot, low, high) => {
    if (low === null) return [0, 1];
    const least = spec.fromZero ? Math.min(0, low) : low;
    const pad = (high - least || Math.abs(high) || 1) * 0.06;
    return [spec.fromZero && low >= 0 ? 0 : least - pad, high + pad];
  };
}

function lastValue(values) {
  for (let at = values.length - 1; at >= 0; at -= 1) {
    if (values[at] !== null && values[at] !== undefined) return values[at];
  }
  return null;
}

function showValues(chart, index) {
  const data = chart.plot.data, each = chart.spec.smoothing ? 2 : 1;
  const drawn = chart.lines.filter((line) => line.x.length);
  chart.values.forEach((element, at) => {
    const line = drawn.indexOf(chart.lines[at]);
    if (line < 0) return;
    const values = data[1 + line * each];
    let value = lastValue(values);
    // Between two points of a line, the point before counts.
    if (index !== null && index !== undefined) value = lastValue(values.slice(0, index + 1));
    element.textContent = chart.spec.yFormat(value);
  });
  const x = index === null || index === undefined ? null : data[0][index];
  chart.where.textContent = x === null || x === undefined ? "" : `${chart.spec.xName} ${chart.spec.xFormat(x)}`;
}

function legend(chart) {
  chart.values = [];
  const shown = chart.lines.slice(0, MAX_LEGEND);
  const entries = shown.map((line) => {
    const value = h("b", {}, NONE);
    chart.values.push(value);
    return h("li", {}, h("i", { style: { background: colour(line.colour) } }), line.label ? `${line.label} ` : "", value);
  });
  const more = chart.lines.length - shown.length;
  return h("ul", { class: "legend" }, entries, more > 0 && h("li", { class: "quiet" }, `and ${more} more`));
}

/** Describe a chart for those who cannot see it. */
function description(spec, lines) {
  const parts = lines.slice(0, 4).map((line) => {
    const finite = line.y.filter((value) => value !== null);
    if (!finite.length) return `${line.label || spec.title}: no values`;
    const [low, high] = finite.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    return `${line.label || spec.title}: last ${spec.yFormat(lastValue(line.y))}, from ${spec.yFormat(low)} to ${spec.yFormat(high)}`;
  });
  return `Chart of ${spec.title}. ${parts.join("; ")}`;
}

/** Return the card of a chart. A card with the same key is kept and gets the new lines, so that a zoom stays.
 *
 * A line is {label, colour, x, y, dash, kind}, of kind "dots", "steps" or none; spec is {key, title, note, group, xName, xTitle, xFormat, yFormat, log, smoothing, fromZero}.
 */
export function chartCard(spec, lines) {
  const shape = JSON.stringify([spec.title, spec.log, !!spec.smoothing, spec.xName, spec.fromZero,
    lines.map((line) => [line.label, line.colour, line.x.length > 0])]);
  let chart = charts.get(spec.key);
  if (chart && chart.shape === shape) {
    chart.lines = lines;
    chart.spec = spec;
    update(chart);
    return chart.card;
  }
  if (chart) forget(chart);
  chart = { spec, lines, shape, values: [], width: 0, plot: null, where: h("span", { class: "where" }), note: h("p", { class: "note" }) };
  chart.box = h("div", { class: "plot", role: "img" });
  chart.card = h("figure", { class: "card" },
    h("figcaption", {}, h("span", { class: "title" }, spec.title), chart.where), legend(chart), chart.note, chart.box);
  charts.set(spec.key, chart);
  // The plot is drawn when its width is known, and again when it changes.
  chart.observer = new ResizeObserver(() => resize(chart));
  chart.observer.observe(chart.box);
  return chart.card;
}

function resize(chart) {
  const width = Math.floor(chart.box.clientWidth);
  if (!width || width === chart.width) return;
  chart.width = width;
  if (chart.plot) chart.plot.setSize({ width, height: HEIGHT });
  else draw(chart);
}

function draw(chart) {
  chart.plot = new uPlot(options(chart), columns(chart.lines, chart.spec.smoothing), chart.box);
  describe(chart);
}

function update(chart) {
  if (!chart.plot) return;
  const { min, max } = chart.plot.scales.x;
  const old = chart.plot.data[0];
  const zoomed = old.length && (min > old[0] || max < old[old.length - 1]);
  chart.plot.setData(columns(chart.lines, chart.spec.smoothing), !zoomed);
  describe(chart);
}

function describe(chart) {
  chart.box.setAttribute("aria-label", description(chart.spec, chart.lines));
  chart.note.textContent = chart.spec.note || "";
  chart.note.hidden = !chart.spec.note;
  showValues(chart, chart.plot.cursor.idx);
}

function forget(chart) {
  chart.observer.disconnect();
  if (chart.plot) chart.plot.destroy();
  charts.delete(chart.spec.key);
}

/** Forget the charts whose cards have left the page. */
export function forgetOthers(root) {
  for (const chart of charts.values()) if (!root.contains(chart.card)) forget(chart);
}

/** Draw all charts again, in the colours of now. */
export function redraw() {
  for (const chart of charts.values()) {
    if (!chart.plot) continue;
    chart.plot.destroy();
    draw(chart);
    chart.card.querySelectorAll(".legend i").forEach((mark, at) => mark.style.setProperty("background", colour(chart.lines[at].colour)));
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

/** The two x axes: steps, where all lines count them, and time since the start. */
export function xOf(line, bySteps) {
  return bySteps && line.steps ? line.steps : line.x;
}

/** Untick and disable a box "over steps" where no line of any metric counts steps: all is drawn over time then. */
export function tickSteps(root, lines, bySteps) {
  const box = root.querySelector("input[name=bySteps]"), counts = lines.some((line) => line.steps);
  box.disabled = !counts;
  box.checked = counts && bySteps;
}

export const stepAxis = { xName: "step", xFormat: (value) => shownNumber(value, 7) };
// Spans that people count in.
const SPANS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800, 2592000];
export const timeAxis = { xName: "at", xTitle: "time", incrs: SPANS, xFormat: (value) => (value === 0 ? "0" : shownSpan(value)) };
