// Several jobs laid over each other: their metrics in one chart each, and the settings in which they differ.

import { colour, forgetOthers, tickSteps } from "./charts.js";
import { NONE, fill, h, pill, section, shownSpan } from "./dom.js";
import { metricCard } from "./job.js";
import { source } from "./source.js";

const PAUSE_MS = 5000;
const DASHES = [undefined, [6, 3], [2, 3], [8, 3, 2, 3]];

export class CompareView {
  constructor(names, root, top) {
    Object.assign(this, { names, root, top, bySteps: true, log: false, smoothing: 0, jobs: [], differences: [] });
  }

  async start() {
    document.title = "Compare · Herringbone";
    fill(this.top, h("h1", {}, `${this.names.length} jobs`));
    this.cards = h("div", { class: "grid" });
    this.tables = h("div");
    const box = (text, name, checked) => h("label", {}, h("input", { type: "checkbox", name, checked, onchange: (event) => {
      this[name] = event.target.checked;
      this.show();
    } }), ` ${text}`);
    fill(this.root, this.tables, section("metrics", "Metrics", h("div", { class: "controls" }, box("over steps", "bySteps", true),
      box("log scale", "log", false), h("label", {}, "Smoothing ", h("input", { type: "range", name: "smoothing", min: 0, max: 0.98, step: 0.02,
        value: 0, oninput: (event) => { this.smoothing = Number(event.target.value); this.show(); } }))), this.cards));
    await this.load();
  }

  stop() {
    clearTimeout(this.timer);
    this.stopped = true;
  }

  async load() {
    try {
      [this.differences, ...this.jobs] = await Promise.all([source.differences(this.names), ...this.names.map((name) => source.job(name))]);
    } catch (error) {
      fill(this.tables, h("p", { class: "banner bad", role: "alert" }, error.message));
      return;
    }
    this.show();
    // Running jobs go on: look again.
    if (!this.stopped && this.jobs.some((job) => !job.done)) this.timer = setTimeout(() => this.load(), PAUSE_MS);
  }

  show() {
    fill(this.tables, this.table());
    const names = [...new Set(this.jobs.flatMap((job) => job.metrics.map((metric) => metric.name)))];
    tickSteps(this.root, this.jobs.flatMap((job) => job.metrics.flatMap((metric) => metric.lines)), this.bySteps);
    fill(this.cards, names.map((name) => {
      const lines = this.jobs.flatMap((job, at) => linesOf(job, name, at));
      return metricCard({ name, count: lines.length }, lines, this);
    }));
    forgetOthers(this.root);
  }

  table() {
    const metrics = [...new Set(this.jobs.flatMap((job) => job.metrics.map((metric) => metric.name)))];
    const row = (name, values) => h("tr", {}, h("th", { scope: "row" }, name), values.map((value) => h("td", {}, value)));
    return section("jobs", "Jobs", h("div", { class: "card wide scroll", tabindex: 0 }, h("table", {},
      h("thead", {}, h("tr", {}, h("td"), this.jobs.map((job, at) => h("th", { scope: "col" },
        h("i", { class: "swatch", style: { background: colour(at) } }), h("a", { href: `/jobs/${encodeURIComponent(job.name)}` }, job.name))))),
      h("tbody", {}, row("state", this.jobs.map((job) => pill(job))), row("time", this.jobs.map((job) => shownSpan(job.seconds))),
        this.differences.map(([name, ...values]) => row(name, values)),
        metrics.map((name) => row(`${name} (last)`, this.jobs.map((job) => lastOf(job, name))))))));
  }
}

/** The lines of one job: one colour, and a dash for each rank. */
function linesOf(job, name, at) {
  const metric = job.metrics.find((one) => one.name === name);
  const lines = metric ? metric.lines.slice(0, 4) : [];
  return lines.map((line, index) => ({ ...line, colour: at, dash: DASHES[index],
    label: lines.length > 1 ? `${job.name} ${line.rank === null ? line.source : `rank ${line.rank}`}` : job.name }));
}

function lastOf(job, name) {
  return job.metrics.find((one) => one.name === name)?.last ?? NONE;
}
