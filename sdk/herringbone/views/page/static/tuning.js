// The page of one search: the best trial, the objective over time, parallel coordinates, and a row for each trial.

import { chartCard, forgetOthers, timeAxis } from "./charts.js";
import { NONE, breakable, fill, h, pill, progressBar, section, shownNumber, shownSpan, shownTime } from "./dom.js";
import { ParallelChart, trialText, valueText } from "./parallel.js";
import { listen, source, tuningStreamOf } from "./source.js";

const MAX_COMPARED = 8;
// Columns that are no tuned value; a number sorts the best, the newest or the longest first.
const COLUMNS = {
  trial: { of: (trial) => trial.number, cell: (trial) => [jobLink(trial), trial.resumes !== null && h("small", {}, ` continues ${trial.resumes}`)] },
  state: { of: (trial) => trial.state, cell: (trial) => [pill(trial), trial.stopped_early && h("small", {}, "early")] },
  time: { of: (trial) => trial.seconds, cell: (trial, late) => shownSpan(secondsOf(trial, late)) },
};

export class TuningView {
  constructor(name, root, top) {
    Object.assign(this, { name, root, top, tuning: null, overTime: false, log: false, chosen: null, order: null, falling: false });
  }

  async start() {
    await this.load();
    if (!this.tuning) return;
    this.close = listen(tuningStreamOf(this.name), () => this.load(), (text) => { fill(this.trouble, text && h("p", { class: "banner warn", role: "alert" }, text)); });
    this.clock = setInterval(() => this.showTimes(), 1000);
  }

  stop() {
    if (this.close) this.close();
    clearInterval(this.clock);
  }

  async load() {
    try {
      this.tuning = await source.tuning(this.name);
    } catch (error) {
      fill(this.trouble ?? this.root, h("p", { class: "banner bad", role: "alert" }, error.message));
      return;
    }
    this.loadedAt = Date.now();
    if (!this.body) this.build();
    this.show();
  }

  build() {
    [this.trouble, this.alerts, this.tiles, this.settings] = [h("div"), h("div"), h("div"), h("div")];
    this.cards = h("div", { class: "grid two" });
    this.parallel = new ParallelChart((numbers) => { this.chosen = numbers; this.showTrials(); });
    this.body = h("tbody");
    this.head = h("tr");
    this.compare = h("a", { class: "button" });
    const box = (text, name) => h("label", {}, h("input", { type: "checkbox", name, onchange: (event) => { this[name] = event.target.checked; this.showObjective(); } }), ` ${text}`);
    fill(this.root, this.trouble, this.alerts, this.tiles,
      section("objective", "Objective", h("div", { class: "controls" }, box("over time", "overTime"), box("log scale", "log")), this.cards),
      section("values", "Values", h("div", { class: "scroll", tabindex: 0 }, this.parallel.element)),
      section("trials", "Trials", h("div", { class: "controls" }, this.compare), h("div", { class: "card wide scroll", tabindex: 0 },
        h("table", { class: "trials" }, h("caption", { class: "hidden" }, "Trials"), h("thead", {}, this.head), this.body))),
      this.settings);
  }

  show() {
    const { tuning } = this;
    document.title = `${tuning.done ? "" : `${tuning.over} of ${tuning.max_jobs} `}${tuning.name} · Herringbone`;
    fill(this.top, h("h1", {}, tuning.name), pill(tuning), h("span", { class: "quiet" },
      `${tuning.strategy} search on ${tuning.backend}, created ${shownTime(tuning.created)}`));
    fill(this.alerts, tuning.why && h("p", { class: `banner ${tuning.status === "Failed" ? "bad" : "warn"}`, role: "alert" }, tuning.why));
    this.showTiles();
    this.showObjective();
    this.parallel.show(tuning);
    this.showTrials();
    fill(this.settings, section("settings", "Settings", h("div", { class: "card wide" }, h("table", { class: "pairs" }, h("tbody", {},
      tuning.settings.map(([name, text]) => h("tr", {}, h("th", { scope: "row" }, breakable(name)), h("td", {}, text))))))));
  }

  showTiles() {
    const { tuning } = this, best = this.best();
    const tile = (name, value, note) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, h("span", {}, value), note && h("small", {}, note)));
    const counts = [...tuning.counts.map(([state, count]) => `${count} ${state}`), tuning.continued && `${tuning.continued} of them continue another`].filter(Boolean).join(", ");
    this.running = h("span", {});
    fill(this.tiles, h("dl", { class: "tiles" },
      h("div", { class: "tile progress" }, h("dt", {}, "trials"), h("dd", {}, `${tuning.over} of ${tuning.max_jobs}`, h("small", {}, counts),
        progressBar(tuning, tuning.done))),
      tile(`best ${tuning.metric}`, tuning.best_text, tuning.maximize ? "higher is better" : "lower is better"),
      h("div", { class: "tile progress" }, h("dt", {}, "best trial"), h("dd", {}, best ? jobLink(best) : "none yet", best && h("small", {}, valuesText(best)))),
      h("div", { class: "tile" }, h("dt", {}, tuning.done ? "duration" : "running for"), h("dd", {}, this.running))));
    this.showTimes();
  }

  showTimes() {
    const late = this.late();
    this.running.textContent = shownSpan(this.tuning.seconds + (this.tuning.done ? 0 : late));
    for (const trial of this.tuning.trials) {
      const cell = !trial.over && this.body.querySelector(`tr[data-trial="${trial.number}"] .col-time`);
      if (cell) cell.textContent = shownSpan(secondsOf(trial, late));
    }
  }

  late() {
    return (Date.now() - this.loadedAt) / 1000;
  }

  best() {
    return this.tuning.trials.find((trial) => trial.number === this.tuning.best);
  }

  /** A dot for each trial with a result, and the best result so far as a staircase. */
  showObjective() {
    const { tuning } = this;
    const ended = tuning.trials.filter((trial) => trial.objective !== null);
    const at = (trial) => (this.overTime ? trial.ended - tuning.created : trial.number);
    ended.sort((a, b) => at(a) - at(b));
    const dots = { label: "trials", colour: 0, kind: "dots", x: ended.map(at), y: ended.map((trial) => trial.objective) };
    let best = null;
    const steps = ended.map((trial) => {
      if (best === null || (tuning.maximize ? trial.objective > best : trial.objective < best)) best = trial.objective;
      return best;
    });
    const line = { label: "best so far", colour: 1, kind: "steps", x: dots.x, y: steps };
    const axis = this.overTime ? timeAxis : { xName: "trial", xFormat: (value) => (Number.isInteger(value) ? String(value) : "") };
    const spec = { key: `objective ${tuning.name} ${this.overTime}`, title: tuning.metric, group: "objective", ...axis, yFormat: (value) => shownNumber(value), log: this.log };
    const none = h("p", { class: "quiet" }, `No trial has a result yet. The chart shows ${tuning.metric} as soon as one ends.`);
    fill(this.cards, ended.length ? chartCard(spec, [dots, line]) : none, this.curves());
    forgetOthers(this.root);
  }

  /** The objective within each trial, for scripts that report it more than once. */
  curves() {
    const { tuning } = this;
    const trials = tuning.trials.filter((trial) => trial.curve.length > 1);
    if (!trials.length) return null;
    // The best ones are drawn, as more lines than colours tell nothing.
    const sign = tuning.maximize ? -1 : 1;
    const shown = [...trials].sort((a, b) => sign * ((a.objective ?? -sign * Infinity) - (b.objective ?? -sign * Infinity))).slice(0, MAX_COMPARED);
    const lines = shown.map((trial, at) => ({ label: `trial ${trial.number}`, colour: at, x: trial.at, y: trial.curve }));
    const spec = { key: `curves ${tuning.name}`, title: `${tuning.metric} within ${shown.length < trials.length ? `the best ${shown.length} trials` : "each trial"}`,
      group: "curves", xName: "value", xFormat: (value) => (Number.isInteger(value) ? String(value) : ""), yFormat: (value) => shownNumber(value), log: this.log };
    return chartCard(spec, lines);
  }

  columns() {
    const { tuning } = this;
    const values = tuning.ranges.map(({ name }) => [name, { of: (trial) => trial.values[name], cell: (trial) => valueText(trial.values[name] ?? NONE) }]);
    const resource = new Set(tuning.trials.map((trial) => trial.resource)).size > 1
      ? [[tuning.resource_name ?? "resource", { of: (trial) => trial.resource, cell: (trial) => valueText(trial.resource ?? NONE) }]] : [];
    const result = { of: (trial) => trial.objective, cell: resultCell };
    return [["trial", COLUMNS.trial], [tuning.metric, result], ...values, ...resource, ["state", COLUMNS.state], ["time", COLUMNS.time]];
  }

  showTrials() {
    const { tuning, chosen } = this, columns = this.columns(), late = this.late();
    if (!this.order) [this.order, this.falling] = [tuning.metric, tuning.maximize];
    const key = (columns.find(([name]) => name === this.order) ?? columns[0])[1].of;
    const trials = tuning.trials.filter((trial) => !chosen || chosen.has(trial.number)).sort((a, b) => ordered(key(a), key(b), this.falling) || a.number - b.number);
    const arrow = (name) => (name !== this.order ? "" : this.falling ? " ↓" : " ↑");
    fill(this.head, columns.map(([name]) => h("th", { scope: "col", "aria-sort": name !== this.order ? "none" : this.falling ? "descending" : "ascending" },
      h("button", { class: "sort", onclick: () => this.sort(name) }, `${name}${arrow(name)}`))));
    fill(this.body, trials.map((trial) => h("tr", { "data-trial": trial.number, class: trial.number === tuning.best ? "best" : "",
      onpointerenter: () => this.parallel.light(trial.number, trialText(trial, tuning)), onpointerleave: () => this.parallel.light(null, "") },
    columns.map(([name, column], at) => h(at ? "td" : "th", { class: `col-${name === "time" ? "time" : "value"}`, ...(at ? {} : { scope: "row" }) },
      column.cell(trial, late), at === 0 && trial.why && h("small", { class: "why" }, trial.why))))));
    const compared = trials.filter((trial) => trial.seconds !== null).slice(0, MAX_COMPARED);
    this.compare.hidden = compared.length < 2;
    this.compare.textContent = `Compare the curves of the first ${compared.length}`;
    this.compare.href = `/compare?jobs=${compared.map((trial) => encodeURIComponent(trial.job)).join(",")}`;
  }

  sort(name) {
    this.falling = name === this.order ? !this.falling : name === this.tuning.metric && this.tuning.maximize;
    this.order = name;
    this.showTrials();
    // The button was made anew: the focus goes to its successor.
    [...this.head.querySelectorAll("button")].find((button) => button.textContent.startsWith(name))?.focus();
  }
}

function resultCell(trial) {
  if (trial.objective !== null) return shownNumber(trial.objective);
  return trial.so_far === null ? NONE : [shownNumber(trial.so_far), h("small", {}, " so far")];
}

function jobLink(trial) {
  return h("a", { href: `/jobs/${encodeURIComponent(trial.job)}` }, trial.job);
}

function secondsOf(trial, late) {
  return trial.seconds === null ? null : trial.seconds + (trial.over ? 0 : late);
}

function valuesText(trial) {
  return Object.entries(trial.values).map(([name, value]) => `${name} ${valueText(value)}`).join(", ");
}

/** Compare two cells; what is not known comes last, whatever the direction. */
function ordered(a, b, falling) {
  const missing = (value) => value === null || value === undefined;
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  const sign = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return falling ? -sign : sign;
}
