"""The supervisor's end of the observer, in real jobs."""

from __future__ import annotations

import json

EMITS = """
import sys, time
from herringbone_contract.events import emit
emit.metric("loss", 0.5, 10)
time.sleep(float(sys.argv[-1]))
emit.metric("loss", 0.25, 20)
"""


def events_of(ended) -> list[dict[str, object]]:
    prefix = b"[algo-1] \x1e"
    return [json.loads(line.removeprefix(prefix)) for line in ended.output.splitlines() if line.startswith(prefix)]


def test_the_metrics_of_a_job_too_short_for_an_observer_are_kept(make_job) -> None:
    job = make_job()
    job.write(EMITS, wait=0.1)
    [event] = events_of(job.run()["algo-1"])
    assert (event["name"], event["values"], event["step"], event["by"]) == ("loss", [0.5, 0.25], 10, 10)


def test_the_last_metrics_of_a_job_are_kept(make_job) -> None:
    job = make_job()
    job.write(EMITS, wait=1.5)
    values = [event["values"] for event in events_of(job.run()["algo-1"]) if event["kind"] == "metrics"]
    assert values == [[0.5], [0.25]]
