// The timeline of one pipeline step: a row for each partition, the measured step above the predicted one.

import { h, section, shownNumber, svg } from "./dom.js";

const ROW = 22, WIDTH = 1000, LEFT = 34;

function kindOf(what) {
  const first = what.trim().toLowerCase()[0];
  return { f: "forward", b: "backward" }[first] || "other";
}

function drawing(title, part, length) {
  const partitions = [...new Set(part.spans.map((span) => span[2]))].sort((a, b) => a - b);
  const scale = (WIDTH - LEFT) / length;
  const rows = partitions.map((partition, at) => svg("text", { x: 0, y: at * ROW + 15, class: "span-label" }, `P${partition}`));
  const spans = part.spans.map(([what, microbatch, partition, start, end]) => {
    const x = LEFT + start * scale, y = partitions.indexOf(partition) * ROW + 2, width = Math.max(1, (end - start) * scale - 1);
    const text = `${what}, microbatch ${microbatch}, partition ${partition}: ${shownNumber((end - start) * 1000)} ms`;
    return svg("g", {}, svg("title", {}, text),
      svg("rect", { x, y, width, height: ROW - 4, rx: 2, class: `span ${kindOf(what)}` }),
      width > 16 && svg("text", { x: x + width / 2, y: y + 13, class: "span-text" }, String(microbatch)));
  });
  const bubble = part.bubble === null ? "" : `bubble ${(part.bubble * 100).toFixed(1)} %`;
  const duration = Math.max(...part.spans.map((span) => span[4]));
  return h("figure", { class: "card wide" },
    h("figcaption", {}, h("span", { class: "title" }, title), h("span", { class: "where" },
      `${bubble}${bubble ? ", " : ""}${shownNumber(duration * 1000)} ms`)),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${partitions.length * ROW}`, class: "timeline", role: "img",
      "aria-label": `${title}: ${partitions.length} partitions, ${bubble}` }, rows, spans));
}

/** Return the section of the timeline, null for a job without one. */
export function timelineSection(timeline) {
  if (!timeline) return null;
  const { measured, predicted } = timeline;
  const all = [...measured.spans, ...(predicted ? predicted.spans : [])];
  const length = all.length ? Math.max(...all.map((span) => span[4])) : 1;
  const at = timeline.step === null ? "" : ` of step ${timeline.step}`;
  const gap = predicted && predicted.bubble !== null && measured.bubble !== null
    ? `The bubble is ${(measured.bubble * 100).toFixed(1)} % of the step; ${(predicted.bubble * 100).toFixed(1)} % was predicted.` : null;
  return section("timeline", `Pipeline${at}`,
    h("p", { class: "quiet" }, h("span", { class: "key forward" }), "forward ", h("span", { class: "key backward" }), "backward. ", gap),
    measured.spans.length > 0 && drawing("Measured", measured, length),
    predicted && predicted.spans.length > 0 && drawing("Predicted", predicted, length));
}
