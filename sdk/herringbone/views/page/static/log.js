// The log of a job: its end first, older lines on request, filters by host, rank and text.

import { fill, h, section, shownTime } from "./dom.js";
import { source } from "./source.js";

const PAGE = 300;
const MAX_SHOWN = 5000;

export class LogView {
  constructor(job) {
    this.name = job.name;
    this.filter = { host: "", rank: "", text: "" };
    this.page = null;
    this.busy = false;
    this.lines = h("div", { class: "log-lines", role: "log", tabindex: 0, "aria-label": "lines of the log" });
    this.older = h("button", { type: "button", class: "small", onclick: () => this.loadOlder() }, "Older lines");
    this.state = h("span", { class: "quiet", role: "status" });
    this.element = section("log", "Log", h("div", { class: "controls" }, this.controls(job), this.older, this.state), this.lines);
    this.load();
  }

  controls(job) {
    const change = (name) => (event) => {
      this.filter[name] = event.target.value.trim();
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.load(), 200);
    };
    const hosts = job.plan.filter(([label]) => label.startsWith("host ")).map(([label]) => label.slice(5));
    return [
      h("label", {}, "Text ", h("input", { type: "search", name: "text", placeholder: "contains", oninput: change("text") })),
      h("label", {}, "Rank ", h("input", { type: "number", name: "rank", min: 0, placeholder: "all", oninput: change("rank") })),
      hosts.length > 1 && h("label", {}, "Host ", h("select", { name: "host", onchange: change("host") },
        h("option", { value: "" }, "all"), hosts.map((host) => h("option", { value: host }, host)))),
    ];
  }

  /** Load the end of the log for the filters of now. */
  async load() {
    const filter = { ...this.filter }, ticket = (this.ticket = {});
    const page = await this.asked(() => source.log(this.name, filter, { count: PAGE }));
    // Another filter may have been typed meanwhile.
    if (!page || ticket !== this.ticket) return;
    this.page = page;
    fill(this.lines, page.lines.map(row));
    this.lines.scrollTop = this.lines.scrollHeight;
    this.show();
  }

  async loadOlder() {
    if (this.busy || !this.page) return;
    this.busy = true;
    const ticket = this.ticket, height = this.lines.scrollHeight;
    const position = { count: PAGE, before: JSON.stringify(this.page.before) };
    const page = await this.asked(() => source.log(this.name, this.filter, position));
    this.busy = false;
    if (!page || ticket !== this.ticket) return;
    this.page = { ...this.page, before: page.before, more: page.more };
    this.lines.prepend(...page.lines.map(row));
    // The lines that were in view stay in view.
    this.lines.scrollTop += this.lines.scrollHeight - height;
    this.show();
  }

  /** Append what has been written since, when the stream says that the log has grown. */
  async grow(sizes) {
    if (this.busy || !this.page || !Object.entries(sizes).some(([host, size]) => size > (this.page.after[host] || 0))) return;
    this.busy = true;
    const ticket = this.ticket, atEnd = this.lines.scrollHeight - this.lines.scrollTop - this.lines.clientHeight < 40;
    const page = await this.asked(() => source.log(this.name, this.filter, { after: JSON.stringify(this.page.after) }));
    this.busy = false;
    if (!page || ticket !== this.ticket) return;
    this.page.after = page.after;
    if (page.skipped) this.lines.append(h("div", { class: "quiet" }, "... lines left out: the log grew too fast ..."));
    this.lines.append(...page.lines.map(row));
    while (this.lines.childElementCount > MAX_SHOWN) this.lines.firstElementChild.remove();
    if (atEnd) this.lines.scrollTop = this.lines.scrollHeight;
    this.show();
  }

  async asked(ask) {
    try {
      return await ask();
    } catch (error) {
      this.state.textContent = String(error.message);
      return null;
    }
  }

  show() {
    this.older.hidden = !this.page.more;
    const count = this.lines.childElementCount;
    this.state.textContent = count ? `${count} lines${this.page.more ? "" : ", from the first one"}` : "no lines";
  }
}

function row(line) {
  const place = line.rank === null ? line.host : `${line.host}:${line.rank}`;
  const bad = /(error|exception)\b|\b(traceback|failed|fatal)\b/i.test(line.text);
  return h("div", { class: bad ? "line bad-line" : "line" },
    h("time", {}, line.t === null ? "" : shownTime(line.t).slice(11)),
    h("span", { class: "place", "data-rank": line.rank === null ? null : line.rank % 8 }, place),
    h("span", { class: "text" }, line.text));
}
