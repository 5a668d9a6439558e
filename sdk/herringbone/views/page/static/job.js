// The page of one job.

import { chartCard, forgetOthers, stepAxis, tickSteps, timeAxis, xOf } from "./charts.js";
import { NONE, breakable, fill, h, pill, progressBar, section, shownBytes, shownMemory, shownNumber, shownSpan, shownTime } from "./dom.js";
import { LogView } from "./log.js";
import { listen, report, source, streamOf } from "./source.js";
import { timelineSection } from "./timeline.js";

const MAX_LINES = 32;
// The charts of a running job are loaded again at most this often.
const PAUSE_MS = 1000;

export class JobView {
  constructor(name, root, top) {
    Object.assign(this, { name, root, top, job: null, bySteps: true, smoothing: 0, log: false, only: "" });
    this.loadedAt = 0;
  }

  async start() {
    await this.load();
    this.close = listen(streamOf(this.name), (message) => this.changed(message), (text) => this.trouble(text));
  }

  stop() {
    if (this.close) this.close();
    clearTimeout(this.timer);
  }

  async changed(message) {
    if (this.logView && message.log) this.logView.grow(message.log);
    if (message.version === this.job.version) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), Math.max(0, this.loadedAt + PAUSE_MS - Date.now()));
  }

  async load() {
    this.loadedAt = Date.now();
    try {
      this.job = await source.job(this.name);
    } catch (error) {
      if (this.job) this.trouble(error.message);
      else fill(this.root, h("p", { class: "banner bad" }, error.message));
      return;
    }
    if (!this.parts) this.build();
    this.show();
  }

  build() {
    const names = ["trouble", "alerts", "tiles", "metrics", "throughput", "resources", "timeline", "happenings", "stacks", "plan", "files"];
    this.parts = Object.fromEntries(names.map((name) => [name, h("div", { class: `part part-${name}` })]));
    this.logView = new LogView(this.job);
    this.parts.log = h("div", { class: "part part-log" }, this.logView.element);
    this.cards = h("div", { class: "grid" });
    this.parts.metrics.append(section("metrics", "Metrics", this.controls(), this.cards));
    const order = ["trouble", "alerts", "tiles", "metrics", "throughput", "resources", "log", "timeline", "stacks", "happenings", "plan", "files"];
    fill(this.root, order.map((name) => this.parts[name]));
    this.showPlan();
    this.showFiles();
  }

  controls() {
    const toggle = (text, name, checked) => h("label", {}, h("input", { type: "checkbox", name, checked, onchange: (event) => {
      this[name] = event.target.checked;
      this.showMetrics();
    } }), ` ${text}`);
    return h("div", { class: "controls" },
      toggle("over steps", "bySteps", true), toggle("log scale", "log", false),
      h("label", {}, "Smoothing ", h("input", { type: "range", name: "smoothing", min: 0, max: 0.98, step: 0.02, value: 0,
        oninput: (event) => { this.smoothing = Number(event.target.value); this.showMetrics(); } })),
      h("label", {}, "Name or rank ", h("input", { type: "search", name: "only", placeholder: "loss, or rank 3",
        oninput: (event) => { this.only = event.target.value.trim().toLowerCase(); this.showMetrics(); } })));
  }

  show() {
    const { job } = this;
    this.showTop();
    this.showAlerts();
    fill(this.parts.tiles, this.tiles());
    this.showMetrics();
    this.showThroughput();
    this.showResources();
    this.once("timeline", job.timeline, () => timelineSection(job.timeline));
    this.once("happenings", job.happenings, () => this.happenings());
    this.once("stacks", job.stacks, () => this.stacks());
  }

  /** Draw a part again only when its data has changed, so that an open part stays open. */
  once(name, data, draw) {
    const text = JSON.stringify(data);
    if (this.parts[name].dataset.of === text) return;
    this.parts[name].dataset.of = text;
    fill(this.parts[name], draw());
  }

  showTop() {
    const { job } = this;
    const percent = job.progress && job.progress.fraction !== null && !job.done ? `${Math.floor(job.progress.fraction * 100)} % ` : "";
    document.title = `${percent}${job.name} · Herringbone`;
    fill(this.top, h("h1", {}, job.name), pill(job), h("span", { class: "quiet" },
      `${job.backend}, ${job.hosts} ${job.hosts === 1 ? "host" : "hosts"}, created ${shownTime(job.created)}`),
    job.trial && h("span", { class: "quiet" }, `trial ${job.trial.number} of `,
      h("a", { href: `/tunings/${encodeURIComponent(job.trial.tuning)}` }, job.trial.tuning), `: ${job.trial.values}`));
  }

  trouble(text) {
    fill(this.parts ? this.parts.trouble : this.root, text && h("p", { class: "banner warn", role: "alert" }, text));
  }

  showAlerts() {
    const { job } = this, banners = [];
    if (job.failure) {
      banners.push(h("div", { class: "banner bad", role: "alert" }, h("strong", {}, job.failure.head),
        job.failure.remedy && h("p", {}, h("b", {}, "To fix: "), job.failure.remedy),
        job.failure.text !== job.failure.head && h("details", {}, h("summary", {}, "Traceback and last lines"), h("pre", {}, job.failure.text))));
    } else if (job.why && job.status !== "Completed") {
      banners.push(h("p", { class: "banner warn" }, job.why));
    }
    for (const kind of job.alerts) {
      const last = job.happenings.filter((happening) => happening.kind === kind).pop();
      if (last) banners.push(h("p", { class: "banner warn", role: "alert" }, h("strong", {}, `${kind}: `), last.text,
        kind === "hang" && job.stacks.length > 0 && [" ", h("a", { href: "#stacks" }, "Stacks")]));
    }
    this.once("alerts", [job.failure, job.why, job.alerts, job.stacks.length], () => banners);
  }

  tiles() {
    const { job } = this, { progress } = job;
    const tile = (name, value, note) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, h("span", {}, value), note && h("small", {}, note)));
    const { gpu, memory, memory_total: total, gpu_memory: held } = job.use;
    return h("dl", { class: "tiles" },
      progress && h("div", { class: "tile progress" }, h("dt", {}, "progress"), h("dd", {},
        progress.fraction === null ? progress.text : `${(progress.fraction * 100).toFixed(1)} %`,
        progress.fraction !== null && h("small", {}, progress.text), progressBar(progress, job.done))),
      progress && progress.eta !== null && tile("time left", progress.left),
      job.loss && tile(job.loss.name, job.loss.text),
      job.rate !== null && tile("throughput", shownNumber(job.rate), "steps/s"),
      tile(job.done ? "duration" : "running for", shownSpan(job.seconds)),
      gpu !== null && tile("GPU use", percent(gpu), "mean"),
      memory !== null && tile(job.done ? "peak of memory" : "memory", shownMemory(memory), total !== null && `of ${shownMemory(total)}`),
      held !== null && tile(job.done ? "peak of GPU memory" : "GPU memory", shownMemory(held)),
      job.bill && tile("cost", job.bill),
      ...(job.prediction ?? []).map((figure) => tile(figure.name, figure.measured ?? NONE, `predicted ${figure.predicted}`)));
  }

  showMetrics() {
    const { job } = this, cards = [];
    tickSteps(this.root, job.metrics.flatMap((metric) => metric.lines), this.bySteps);
    const rank = /^rank\s*(\d+)$/.exec(this.only);
    for (const metric of job.metrics) {
      let lines = metric.lines;
      if (rank) lines = lines.filter((line) => line.rank === Number(rank[1]));
      else if (this.only && !metric.name.toLowerCase().includes(this.only)) continue;
      if (lines.length) cards.push(metricCard(metric, lines, this));
    }
    const none = job.metrics.length ? "No metric has this name or rank." : "This job has sent no metrics so far.";
    fill(this.cards, cards.length ? cards : h("p", { class: "quiet" }, none));
    forgetOthers(this.root);
  }

  showThroughput() {
    const lines = this.job.throughput.slice(0, MAX_LINES).map((line, at) => ({ ...line, label: `rank ${line.rank}`, colour: at }));
    if (!lines.length) return;
    const spec = { key: "throughput", title: "steps per second", group: "time", ...timeAxis, yFormat: (value) => shownNumber(value, 3), fromZero: true };
    this.put("throughput", "Throughput", [chartCard(spec, lines)]);
  }

  /** Put charts into a part, without taking those out that stay: a chart that leaves the page loses its zoom. */
  put(name, title, cards) {
    const part = this.parts[name];
    if (!part.firstChild) part.append(section(name, title, h("div", { class: "grid" })));
    const grid = part.querySelector(".grid");
    if (cards.length !== grid.childElementCount || cards.some((card, at) => grid.children[at] !== card)) fill(grid, cards);
  }

  showResources() {
    const cards = this.job.resources.slice(0, 64).flatMap((host) => resourceCards(host, this.job.resources.length > 1));
    if (cards.length) this.put("resources", "Resources", cards);
  }

  happenings() {
    const rows = [...this.job.happenings].reverse().map((happening) => h("tr", {},
      h("td", { class: "nowrap" }, shownTime(happening.t)),
      h("td", {}, h("span", { class: `mark ${happening.kind}` }, happening.kind)), h("td", {}, happening.text)));
    return rows.length > 0 && section("events", "Events", h("div", { class: "scroll short", tabindex: 0 }, h("table", {},
      h("thead", {}, h("tr", {}, ["time", "what", ""].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows))));
  }

  stacks() {
    const dumps = [...this.job.stacks].reverse();
    return dumps.length > 0 && section("stacks", "Stacks", dumps.map((dump, at) => h("details", { open: at === 0, class: "card wide" },
      h("summary", {}, `${shownTime(dump.t)} ${dump.why}`),
      dump.groups.map((group) => h("div", {},
        h("h3", {}, `${group.ranks.length === 1 ? "rank" : "ranks"} ${group.ranks.join(", ")}${group.state ? `: ${group.state}` : ""}`),
        h("pre", {}, group.text))))));
  }

  showPlan() {
    const { job } = this;
    const table = (rows) => h("table", { class: "pairs" }, h("tbody", {}, rows.map(([name, text]) =>
      h("tr", {}, h("th", { scope: "row" }, breakable(name)), h("td", {}, text)))));
    if (job.plan.length) fill(this.parts.plan, section("plan", "Plan", h("div", { class: "card wide scroll" }, table(job.plan)),
      job.hyperparameters.length > 0 && h("details", { class: "card wide" },
        h("summary", {}, `${job.hyperparameters.length} hyperparameters`), table(job.hyperparameters))));
  }

  async showFiles() {
    const files = await source.files(this.name).catch(() => []);
    if (!files.length) return;
    const rows = files.map((file) => {
      const address = file.path && source.fileAddress(this.name, file.path);
      const known = file.size !== null;
      return h("tr", {}, h("td", {}, address ? h("a", { href: address, download: true }, file.shown) : file.shown),
        h("td", { class: "number" }, known && shownBytes(file.size)),
        h("td", { class: "nowrap quiet" }, known && shownTime(file.t)));
    });
    fill(this.parts.files, section("files", "Files", h("details", { class: "card wide", open: !report && files.length < 30 },
      h("summary", {}, `${files.length} files`), h("div", { class: "scroll" }, h("table", {},
        h("thead", {}, h("tr", {}, ["path", "size", "changed"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows))))));
  }
}

/** The card of one metric; `settings` are bySteps, log and smoothing. */
export function metricCard(metric, lines, settings) {
  const bySteps = settings.bySteps && lines.every((line) => line.steps);
  const shown = lines.slice(0, MAX_LINES).map((line, at) => ({
    label: line.label ?? labelOf(line, lines), colour: line.colour ?? at, dash: line.dash, x: xOf(line, bySteps), y: line.y,
  }));
  const odd = lines.find((line) => line.odd);
  const many = metric.count > shown.length ? `${shown.length} of ${metric.count} lines are shown. ` : "";
  const broken = odd ? `First value that is no number: ${odd.odd.text}${odd.odd.step === null ? "" : ` at step ${odd.odd.step}`}.` : "";
  const spec = { key: `metric ${metric.name}`, title: metric.name, group: bySteps ? "steps" : "time", note: many + broken,
    ...(bySteps ? stepAxis : timeAxis), yFormat: (value) => shownNumber(value), log: settings.log, smoothing: settings.smoothing };
  return chartCard(spec, shown);
}

function labelOf(line, lines) {
  const hosts = new Set(lines.map((other) => other.host)).size, sources = new Set(lines.map((other) => other.source)).size;
  if (lines.length === 1) return "";
  return [line.rank === null ? hosts > 1 && line.host : `rank ${line.rank}`, sources > 1 && line.source].filter(Boolean).join(", ") || line.source;
}

const percent = (value) => (value === null ? NONE : `${Math.round(value * 100)} %`);
const perSecond = (value) => `${shownBytes(value)}/s`;
const plain = (unit) => (value) => `${shownNumber(value, 3)} ${unit}`.trim();
// Title, kind of part, figures, and how values are written.
const RESOURCES = [
  ["GPU use", "gpu", ["use"], percent], ["GPU memory", "gpu", ["memory"], shownMemory],
  ["CPU cores", "", ["cpu"], plain("")], ["memory", "", ["memory", "memory_total"], shownMemory],
  ["network", "", ["net_in", "net_out"], perSecond], ["disk", "", ["disk_read", "disk_write"], perSecond],
  ["GPU power", "gpu", ["watts"], plain("W")], ["GPU temperature", "gpu", ["celsius"], plain("°C")],
  ["CPU cores of ranks", "rank", ["cpu"], plain("")], ["memory of ranks", "rank", ["memory"], shownMemory],
];
const FIGURES = { net_in: "in", net_out: "out", disk_read: "read", disk_write: "write", memory: "used", memory_total: "in all", cpu: "used" };

function resourceCards(host, several) {
  return RESOURCES.flatMap(([title, kind, figures, yFormat]) => {
    const lines = host.parts.filter((part) => part.part.split(" ")[0] === kind).flatMap((part) =>
      figures.filter((figure) => part.figures[figure]).map((figure) => ({ ...part.figures[figure],
        label: kind ? part.part : figures.length > 1 ? FIGURES[figure] : "", dash: figure === "memory_total" ? [4, 4] : undefined })));
    if (!lines.length) return [];
    const shown = lines.slice(0, MAX_LINES).map((line, at) => ({ ...line, colour: at }));
    const spec = { key: `${host.host} ${title}`, title: several ? `${host.host}: ${title}` : title, group: "time", ...timeAxis, yFormat, fromZero: true };
    return [chartCard(spec, shown)];
  });
}
