// Where the data of a page comes from: the server, or the report that this file is part of.

const embedded = document.getElementById("report-data");

/** The data of a report, null on a served page: {job, log, files}. */
export const report = embedded ? JSON.parse(embedded.textContent) : null;

async function get(address) {
  const answer = await fetch(address, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error((await answer.text()).trim() || `${answer.status} ${answer.statusText}`);
  return answer.json();
}

function path(name, part = "") {
  return `/api/jobs/${encodeURIComponent(name)}${part}`;
}

export const source = {
  jobs: () => get("/api/jobs"),
  job: async (name) => (report ? report.job : get(path(name))),
  differences: (names) => get(`/api/differences?jobs=${names.map(encodeURIComponent).join(",")}`),
  tuning: (name) => get(`/api/tunings/${encodeURIComponent(name)}`),
  files: async (name) => (report ? report.files : (await get(path(name, "/files"))).files),
  fileAddress: (name, file) => (report ? null : `${path(name, "/file")}?path=${encodeURIComponent(file)}`),
  log: async (name, filter, position) => {
    if (report) return { ...report.log, lines: report.log.lines.filter((line) => matches(line, filter)), more: false };
    const query = new URLSearchParams(Object.entries({ ...filter, ...position }).filter(([, value]) => value !== ""));
    return get(`${path(name, "/log")}?${query}`);
  },
};

function matches(line, filter) {
  return (filter.rank === "" || String(line.rank) === filter.rank) && (filter.host === "" || line.host === filter.host) &&
    line.text.toLowerCase().includes(filter.text.toLowerCase());
}

/** Call `changed` with each message of a stream, until it is over. The browser connects again by itself. */
export function listen(address, changed, trouble) {
  if (report) return () => {};
  const stream = new EventSource(address);
  stream.onmessage = (event) => { trouble(""); changed(JSON.parse(event.data)); };
  stream.addEventListener("over", () => stream.close());
  stream.addEventListener("trouble", (event) => { trouble(JSON.parse(event.data)); });
  stream.addEventListener("gone", (event) => { trouble(JSON.parse(event.data)); stream.close(); });
  stream.onerror = async () => {
    // The browser gives up a stream that the server refuses, as for a job that is not there, and tells no reason.
    const answer = stream.readyState === EventSource.CLOSED ? await fetch(address).catch(() => null) : null;
    if (answer && answer.ok) answer.body.cancel();
    trouble(answer && !answer.ok ? (await answer.text()).trim() : "The server does not answer. Is `herringbone page` still running?");
  };
  return () => stream.close();
}

export function streamOf(name) {
  return name ? path(name, "/stream") : "/api/stream";
}

export function tuningStreamOf(name) {
  return `/api/tunings/${encodeURIComponent(name)}/stream`;
}
