"""The report: the page of one job as one file that needs no server, with its data, style and scripts inside."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.views.page.data import Fineness
from herringbone.views.page.files import listed_files, rest
from herringbone.views.page.live import LiveJob
from herringbone.views.page.log_pages import Choice
from herringbone_contract.errors import HerringboneError, InputError
from herringbone_contract.files import write_whole

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend

STATIC = Path(__file__).parent / "static"
# A module comes after those that it imports.
MODULES = ("dom", "charts", "source", "log", "timeline", "job", "list", "compare", "parallel", "tuning", "app")
MAX_BYTES = 2_000_000
# From the finest to the coarsest; the first one whose report is small enough is written: points of a line, points of
# all metrics, lines of the log.
_GRADES = ((500, 40_000, 1_000), (300, 20_000, 500), (150, 8_000, 200), (60, 2_000, 50), (20, 400, 10))
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|function|class) (\w+))", re.MULTILINE)


def write_report(name: str, path: Path, backend: Backend | None = None) -> Path:
    """Write the report of a job, which may still run, and return its path.

    >>> write_report("digits-1", Path("report.html"))                # doctest: +SKIP
    PosixPath('report.html')

    The file appears complete or not at all. Raises `JobNotFoundError`, and `InputError` where it cannot be written.
    """
    with closing(LiveJob(name, backend)) as job:
        job.look()
        text = report_of(job)
    try:
        write_whole(path, text.encode(), mode=0o666)
    except OSError as error:
        raise InputError(f"the report cannot be written to {path}: {error.strerror}; name another file") from error
    return path


def report_of(job: LiveJob) -> str:
    """Return the report as HTML of at most 2 MB; a job of very many points or ranks is shown more coarsely."""
    files = listed_files(job.folder.path)
    for buckets, points, lines in _GRADES:
        log: dict[str, Any] = {"lines": []}
        # A log that a service does not give leaves the rest of the report.
        with suppress(HerringboneError):
            log = job.log(Choice(), count=lines)
        data = {
            "job": job.data(Fineness(buckets, points)),
            "log": log,
            "files": files[: 2 * lines] + [rest(f"{len(files) - 2 * lines} more files")] * (len(files) > 2 * lines),
            "made": time.time(),
        }
        text = page_with(data)
        if len(text.encode()) <= MAX_BYTES:
            return text
    # Not even the coarsest: texts are long. The figures alone are small.
    few = job.data(Fineness(*_GRADES[-1][:2])) | {"stacks": [], "plan": [], "hyperparameters": []}
    few["happenings"] = few["happenings"][-20:]
    return page_with({"job": few, "files": [], "log": {"lines": []}, "made": time.time()})


def page_with(data: dict[str, Any]) -> str:
    """Return a page with `data` inside, which a browser opens from a file.

    Only scripts of ours may run in it: their hashes are in its content security policy.
    """
    scripts = [_read("vendor/uplot.js"), bundle()]
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    style = _read("vendor/uplot.css") + _read("style.css")
    title = html.escape(data["job"]["name"])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · Herringbone</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header id="top"></header>
<main id="main" tabindex="-1"></main>
<noscript>This page needs JavaScript.</noscript>
<script type="application/json" id="report-data">{_json(data)}</script>
<script>{scripts[0]}</script>
<script type="module">{scripts[1]}</script>
</body>
</html>
"""


def bundle() -> str:
    """Return the page's modules as one script: each in a function of its own, which returns what it exports."""
    return "\n".join(_as_function(name) for name in MODULES)


def _as_function(name: str) -> str:
    text = _read(f"{name}.js")
    exported = ", ".join(match[1] for match in _EXPORT.finditer(text))
    text = _IMPORT.sub(r"const \1 = module_\2;", _EXPORT.sub("", text))
    return f"const module_{name} = (() => {{\n{text}return {{ {exported} }};\n}})();"


def _json(data: dict[str, Any]) -> str:
    # In HTML a script ends at `</script`, wherever it is, and `<!--` begins a comment: no text may have a `<`.
    return msgspec.json.encode(data).decode().replace("<", "\\u003c").replace("\u2028", "\\u2028")


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")
