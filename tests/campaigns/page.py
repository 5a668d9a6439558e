"""Measure the page in a headless Chromium: the list of 100 jobs, and jobs of 10^6 points.

Usage: `.venv/bin/python -m tests.campaigns.page` from the root of the repository. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn

from herringbone import TrainingJob
from herringbone.records.home import Home
from herringbone.views.page.server import Server
from tests.page.browser import Browser
from tests.page.make_jobs import make_long, make_many

ROUNDS = 5
POINTS = 1_000_000


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home")
        os.environ["HERRINGBONE_HOME"] = str(home.path)
        make_many(home, 100, time.time())
        sizes = {number: make_long(home, POINTS, time.time(), per_event=number).stat().st_size for number in (10, 100)}
        figures: dict[str, Any] = {"bytes_of_events": sizes}
        figures["list_s"] = measured(home, "/", "document.querySelectorAll('.jobs tbody tr').length >= 100")
        for number in sizes:
            drawn = "document.querySelectorAll('#metrics canvas').length === 1"
            figures[f"open_{number}_per_event_s"] = measured(home, f"/jobs/long-{number}", drawn)
            begin = time.monotonic()
            report = TrainingJob.attach(f"long-{number}").report(Path(folder) / "report.html")
            figures[f"report_{number}_per_event_s"] = round(time.monotonic() - begin, 2)
            figures["report_bytes"] = report.stat().st_size
    print(json.dumps(figures))
    return 0


def measured(home: Home, path: str, drawn: str) -> dict[str, float]:
    """Return the seconds until a page is drawn: by a server that has read nothing yet, and by one that has."""
    first, again = [], []
    with Browser() as browser:
        for _ in range(ROUNDS):
            server = Server(home)
            runner = uvicorn.Server(
                uvicorn.Config(server.app("t"), port=0, log_level="warning", timeout_graceful_shutdown=1)
            )
            thread = threading.Thread(target=runner.run)
            thread.start()
            while not runner.started:
                time.sleep(0.01)
            address = f"http://127.0.0.1:{runner.servers[0].sockets[0].getsockname()[1]}"
            # Without a job: the way in, which reads nothing.
            browser.open(f"{address}/compare?token=t", until="location.search === ''")
            for times in (first, again):
                begin = time.monotonic()
                browser.open(f"{address}{path}", until=f"location.pathname === '{path}' && {drawn}")
                times.append(time.monotonic() - begin)
                browser.open("about:blank")
            server.end()
            runner.should_exit = True
            thread.join()
    return {"first": round(statistics.median(first), 2), "again": round(statistics.median(again), 2)}


if __name__ == "__main__":
    sys.exit(main())
