// Chooses the view by the address: the list, one job, one search, or several jobs laid over each other.

import { CompareView } from "./compare.js";
import { h } from "./dom.js";
import { JobView } from "./job.js";
import { ListView } from "./list.js";
import { report } from "./source.js";
import { TuningView } from "./tuning.js";

const SECTIONS = ["metrics", "throughput", "resources", "log", "timeline", "stacks", "events", "plan", "files",
  "objective", "values", "trials", "settings"];

function view(root, top) {
  const [, first, name] = location.pathname.split("/");
  if (report) return new JobView(report.job.name, root, top);
  if (first === "jobs" && name) return new JobView(decodeURIComponent(name), root, top);
  if (first === "tunings" && name) return new TuningView(decodeURIComponent(name), root, top);
  const jobs = new URLSearchParams(location.search).get("jobs");
  if (first === "compare" && jobs) return new CompareView(jobs.split(",").slice(0, 16), root, top);
  return new ListView(root, top);
}

function start() {
  const root = document.getElementById("main"), title = h("div", { class: "title-line" });
  const home = report ? h("span", { class: "brand" }, "Herringbone") : h("a", { class: "brand", href: "/" }, "Herringbone");
  document.getElementById("top").append(home, title);
  const shown = view(root, title);
  if (shown instanceof JobView || shown instanceof TuningView) {
    const links = h("nav", { "aria-label": "sections" });
    document.getElementById("top").append(links);
    // A link for each section that there is.
    new MutationObserver(() => {
      const ids = SECTIONS.filter((id) => root.querySelector(`section#${id}`));
      if (links.dataset.ids === ids.join()) return;
      links.dataset.ids = ids.join();
      links.replaceChildren(...ids.map((id) => h("a", { href: `#${id}` }, id)));
    }).observe(root, { childList: true, subtree: true });
  }
  addEventListener("pagehide", () => shown.stop());
  // A page that the browser kept, and shows again, has lost its stream.
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  shown.start();
}

start();
