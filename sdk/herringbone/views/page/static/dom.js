// Elements and the ways in which figures are written. Texts become text nodes: nothing here makes HTML from a text.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: h("a", {href: "/", class: "name"}, "text", child). */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Make an element of a drawing. */
export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    // The content security policy refuses a style attribute, and allows properties.
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Put children into an element instead of those it has. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child));
}

/** Return a name with places where a line may end: behind underscores, before it ends within a word. */
export function breakable(name) {
  return name.split(/(?<=_)/).flatMap((part) => [part, h("wbr")]);
}

// The text of a value that is not known.
export const NONE = "-";

/** Write a number as `shown_number` of `show/cells.py` does: four digits, but never less than its whole part. */
export function shownNumber(value, digits = 4) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size >= 1e3 && size < 1e7) return value.toFixed(0);
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  if (Number(exponent) >= -4 && Number(exponent) < digits) return String(Number(value.toPrecision(digits)));
  return `${Number(mantissa)}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

/** Write a span as `shown_span` of `system/times.py` does. */
export function shownSpan(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const units = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
  for (const [large, name, small, below] of units) {
    if (seconds >= large) {
      const rest = Math.floor((seconds % large) / small);
      return `${Math.floor(seconds / large)} ${name}` + (rest ? ` ${rest} ${below}` : "");
    }
  }
  return `${seconds.toFixed(1)} s`;
}

function shownSize(bytes, base, units) {
  if (bytes === null || bytes === undefined) return NONE;
  for (let power = units.length; power > 0; power--) if (bytes >= base ** power) return `${(bytes / base ** power).toFixed(1)} ${units[power - 1]}`;
  return `${bytes.toFixed(0)} bytes`;
}

/** Write sizes as `system/sizes.py` does: of files, and of memory. */
export const shownBytes = (bytes) => shownSize(bytes, 1000, ["KB", "MB", "GB", "TB"]);
export const shownMemory = (bytes) => shownSize(bytes, 1024, ["KiB", "MiB", "GiB"]);

export function shownTime(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const time = new Date(seconds * 1000);
  const two = (value) => String(value).padStart(2, "0");
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ` +
    `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

/** The word and the colour of a job's state. */
export function pill(job) {
  const word = job.status === "InProgress" ? job.state : job.state.startsWith("Max") ? "Timed out" : job.status;
  const kind = { Completed: "good", Failed: "bad", Stopped: "warn", Stopping: "warn" }[job.status] || "live";
  return h("span", { class: `pill ${word === "Timed out" ? "warn" : kind}` }, word);
}

export function progressBar(progress, done) {
  if (!progress || progress.fraction === null) return null;
  const percent = Math.round(progress.fraction * 1000) / 10;
  return h("span", { class: done ? "bar still" : "bar", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100,
    "aria-valuenow": percent, "aria-label": "progress" },
  h("span", { class: "bar-fill", style: { width: `${percent}%` } }));
}

export function section(id, title, ...children) {
  return h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), ...children);
}
