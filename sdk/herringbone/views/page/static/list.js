// The list of jobs, from which one is opened and several are compared, below the searches that started some of them.

import { fill, h, pill, progressBar, shownSpan, shownTime } from "./dom.js";
import { listen, source, streamOf } from "./source.js";

const STATES = [["all", () => true], ["running", (job) => !job.done], ["completed", (job) => job.status === "Completed"],
  ["failed", (job) => job.status === "Failed"], ["stopped", (job) => job.status === "Stopped"]];

export class ListView {
  constructor(root, top) {
    Object.assign(this, { root, top, text: "", state: "all", chosen: new Set(), rows: new Map(), withTrials: true, data: { jobs: [], tunings: [], now: 0 } });
  }

  async start() {
    document.title = "Jobs · Herringbone";
    fill(this.top, h("h1", {}, "Jobs"));
    this.build();
    await this.load();
    this.close = listen(streamOf(null), () => this.load(), (text) => { this.note.textContent = text; });
    this.clock = setInterval(() => this.show(), 1000);
  }

  stop() {
    if (this.close) this.close();
    clearInterval(this.clock);
  }

  build() {
    this.note = h("p", { class: "quiet", role: "status" });
    this.body = h("tbody");
    this.compare = h("a", { class: "button", "aria-disabled": "true" }, "Compare");
    this.tunings = h("div");
    this.trials = h("label", { hidden: true }, h("input", { type: "checkbox", name: "trials", checked: true, onchange: (event) => {
      this.withTrials = event.target.checked;
      this.show();
    } }), " trials");
    const heads = ["", "name", "state", "progress", "loss", "time", "hosts", "runs on", "created"];
    fill(this.root, this.tunings,
      h("div", { class: "controls" },
        h("label", {}, "Name ", h("input", { type: "search", name: "name", placeholder: "contains", oninput: (event) => {
          this.text = event.target.value.trim().toLowerCase();
          this.show();
        } })),
        h("label", {}, "State ", h("select", { name: "state", onchange: (event) => { this.state = event.target.value; this.show(); } },
          STATES.map(([name]) => h("option", { value: name }, name)))),
        this.trials, this.compare),
      h("div", { class: "card wide" }, h("table", { class: "jobs" }, h("caption", { class: "hidden" }, "Jobs, the newest first"),
        h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col", class: `col-${name.replace(" ", "-") || "tick"}` },
          name || h("span", { class: "hidden" }, "compare"))))), this.body)),
      this.note);
  }

  async load() {
    try {
      this.data = await source.jobs();
      this.loadedAt = Date.now();
      this.show();
    } catch (error) {
      this.note.textContent = error.message;
    }
  }

  show() {
    const takes = STATES.find(([name]) => name === this.state)[1];
    const jobs = this.data.jobs.filter((job) => takes(job) && job.name.toLowerCase().includes(this.text) && (this.withTrials || !job.trial));
    this.showTunings();
    const late = (Date.now() - this.loadedAt) / 1000;
    const rows = jobs.map((job) => this.row(job, late));
    // Rows that have not changed stay, so that the focus stays.
    if (rows.length !== this.body.childElementCount || rows.some((row, at) => this.body.children[at] !== row)) fill(this.body, rows);
    const running = this.data.jobs.filter((job) => !job.done).length;
    this.note.textContent = this.data.jobs.length ? `${jobs.length} of ${this.data.jobs.length} jobs, ${running} running`
      : "No jobs yet: `herringbone run` starts one.";
    this.showCompare();
  }

  /** The searches, the newest first; nothing where there are none. */
  showTunings() {
    const { tunings } = this.data;
    this.trials.hidden = !tunings.length;
    const seconds = (Date.now() - this.loadedAt) / 1000;
    const text = JSON.stringify(tunings.map((tuning) => [{ ...tuning, seconds: null }, shownSpan(tuning.seconds + (tuning.done ? 0 : seconds))]));
    if (this.tunings.dataset.of === text) return;
    // A link that has the focus keeps it: the rows are made anew.
    const focused = document.activeElement?.dataset?.tuning;
    this.tunings.dataset.of = text;
    const heads = ["name", "state", "trials", "best", "with", "time", "search", "runs on"];
    fill(this.tunings, tunings.length > 0 && [h("h2", {}, "Tuning jobs"), h("div", { class: "card wide" }, h("table", { class: "jobs tunings" },
      h("caption", { class: "hidden" }, "Tuning jobs, the newest first"),
      h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col", class: `col-${name.replace(" ", "-")}` }, name)))),
      h("tbody", {}, tunings.map((tuning) => tuningRow(tuning, tuning.done ? 0 : seconds))))), h("h2", {}, "Jobs")]);
    if (focused) this.tunings.querySelector(`[data-tuning="${CSS.escape(focused)}"]`)?.focus();
  }

  row(job, late) {
    const seconds = job.seconds === null ? null : job.seconds + (job.done ? 0 : late);
    const text = JSON.stringify([job, shownSpan(seconds)]);
    const known = this.rows.get(job.name);
    if (known && known.text === text) return known.row;
    const tick = known ? known.tick : h("input", { type: "checkbox", "aria-label": `compare ${job.name}`, onchange: (event) => {
      if (event.target.checked) this.chosen.add(job.name);
      else this.chosen.delete(job.name);
      this.showCompare();
    } });
    const cells = [
      ["tick", tick],
      ["name", [h("a", { href: `/jobs/${encodeURIComponent(job.name)}` }, job.name), job.trial && trialNote(job.trial), job.why && h("small", { class: "why" }, job.why)]],
      ["state", [pill(job), job.alerts.map((alert) => h("span", { class: "pill warn" }, alert))]],
      ["progress", job.progress ? [progressBar(job.progress, job.done), h("small", {}, progressText(job))] : ""],
      ["loss", job.loss ? [h("span", { class: "number" }, job.loss.text), h("small", {}, job.loss.name)] : ""],
      ["time", shownSpan(seconds)], ["hosts", String(job.hosts)], ["runs-on", job.backend], ["created", shownTime(job.created).slice(0, 16)],
    ].map(([name, content]) => h("td", { class: `col-${name}` }, content));
    const row = known ? known.row : h("tr");
    // The focus of a link or a box that is taken out is lost; so the old row is filled again, box included.
    const focused = row.contains(document.activeElement) ? document.activeElement : null;
    fill(row, cells);
    if (focused) (focused === tick ? tick : row.querySelector("a")).focus();
    this.rows.set(job.name, { row, tick, text });
    return row;
  }

  showCompare() {
    const names = [...this.chosen].filter((name) => this.data.jobs.some((job) => job.name === name));
    const ready = names.length >= 2;
    this.compare.textContent = ready ? `Compare ${names.length} jobs` : "Tick two jobs to compare";
    this.compare.setAttribute("aria-disabled", String(!ready));
    if (ready) this.compare.href = `/compare?jobs=${names.map(encodeURIComponent).join(",")}`;
    else this.compare.removeAttribute("href");
  }
}

function progressText(job) {
  const { progress } = job;
  if (progress.fraction === null) return progress.text;
  return `${Math.floor(progress.fraction * 100)} %${progress.eta === null ? "" : `, ${progress.left}${progress.late ? "" : " left"}`}`;
}

function trialNote(trial) {
  return h("small", {}, `trial ${trial.number} of `, h("a", { href: `/tunings/${encodeURIComponent(trial.tuning)}` }, trial.tuning), `: ${trial.values}`);
}

function tuningRow(tuning, late) {
  return h("tr", {}, [
    ["name", [h("a", { href: `/tunings/${encodeURIComponent(tuning.name)}`, "data-tuning": tuning.name }, tuning.name),
      tuning.why && h("small", { class: "why" }, tuning.why)]],
    ["state", pill(tuning)],
    ["trials", [progressBar(tuning, tuning.done), h("small", {}, `${tuning.over} of ${tuning.max_jobs}`)]],
    ["best", tuning.best === null ? "" : [h("span", { class: "number" }, tuning.best_text), h("small", {}, tuning.metric)]],
    ["with", tuning.best === null ? "" : h("small", {}, tuning.best_values)],
    ["time", shownSpan(tuning.seconds + late)], ["search", tuning.strategy], ["runs-on", tuning.backend],
  ].map(([name, content]) => h("td", { class: `col-${name}` }, content)));
}
