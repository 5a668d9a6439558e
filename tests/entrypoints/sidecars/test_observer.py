"""The supervisor's end of the observer, in real jobs: nothing that happens to the observer happens to the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from herringbone_entry.sidecars.observer import EventLines

MARK = b"[algo-1] \x1e"
EMITS = """
import sys, time
from herringbone_contract.events import emit
emit.metric("loss", 0.5, 10)
time.sleep(float(sys.argv[-1]))
emit.metric("loss", 0.25, 20)
print("at", time.time())
"""


def events_of(ended) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(MARK)) for line in ended.output.split(b"\n") if line.startswith(MARK)]


def metrics_of(ended) -> list[list[float]]:
    return [event["values"] for event in events_of(ended) if event["kind"] == "metrics"]


def observers(job) -> list[int]:
    """Return the pids of the observers of a job."""
    pids = []
    for pid in job.survivors():
        try:
            if b"herringbone_entry.observer.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                pids.append(pid)
        except OSError:
            continue
    return pids


def observer_after(job, *known: int) -> int:
    deadline = time.monotonic() + 10
    while True:
        new = [pid for pid in observers(job) if pid not in known]
        if new:
            return new[0]
        assert time.monotonic() < deadline, "no observer came"
        time.sleep(0.02)


def test_the_metrics_of_a_job_too_short_for_an_observer_are_kept(make_job) -> None:
    job = make_job()
    job.write(EMITS, wait=0.1)
    [event] = events_of(job.run()["algo-1"])
    assert (event["name"], event["values"], event["step"], event["by"]) == ("loss", [0.5, 0.25], 10, 10)


def test_a_job_has_samples_and_its_last_metrics_and_ends_at_once(make_job) -> None:
    # A job of over a second has samples only of the end: the interval of hosts without a controller is a minute.
    reader, _writer = os.pipe()
    job = make_job(HERRINGBONE_LIFELINE_FD=str(reader))
    job.descriptors.append(reader)
    job.write(EMITS, wait=2.4)
    ended = job.run()["algo-1"]
    after = time.time() - float(ended.rank_lines[-1].split()[-1])
    assert [value for values in metrics_of(ended) for value in values] == [0.5, 0.25]
    samples = [event for event in events_of(ended) if event["kind"] == "sample"]
    assert [sample["ranks"]["0"]["state"] for sample in samples[:1]] == ["S"]
    assert samples[0]["memory"] > 1 << 20
    assert after < 0.5
    assert job.survivors() == []
    # No file of ours stays behind.
    assert list(job.run_folder.iterdir()) == []


def test_an_observer_that_dies_twice_costs_two_lines(make_job) -> None:
    job = make_job()
    job.write(EMITS, wait=2.5)
    job.start()
    first = observer_after(job)
    os.kill(first, signal.SIGKILL)
    second = observer_after(job, first)
    os.kill(second, signal.SIGKILL)
    ended = job.wait()["algo-1"]
    assert ended.code == 0
    lines = [line for line in ended.lines if "observer" in line]
    assert lines == [
        "[algo-1] the observer of this host ended with -9; the job continues, and the observer starts again",
        "[algo-1] the observer of this host ended with -9; the job continues without samples and metrics of its script",
    ]
    # The supervisor brings what no observer has read.
    assert metrics_of(ended)[-1][-1] == 0.25


def test_an_observer_that_hangs_delays_the_end_by_its_grace_alone(make_job) -> None:
    job = make_job()
    job.write(EMITS, wait=1.6)
    job.start()
    os.kill(observer_after(job), signal.SIGSTOP)
    ended = job.wait()["algo-1"]
    assert ended.code == 0
    assert time.time() - float(ended.rank_lines[-1].split()[-1]) < 1.0
    assert job.survivors() == []
    assert metrics_of(ended) == [[0.5, 0.25]]


def test_a_rank_cannot_forge_events_of_its_host(make_job) -> None:
    job = make_job()
    event = '{"kind":"hang","t":1.0}'
    job.write(f"""
        import sys
        print("\\x1e" + {event!r})
        print("\\n[algo-1] \\x1e" + {event!r} + "\\r[algo-1] \\x1e" + {event!r} + "\\r")
        sys.exit("\\n[algo-1] \\x1e" + {event!r})
    """)
    ended = job.run()["algo-1"]
    assert ended.code == 1
    assert events_of(ended) == []


@pytest.mark.parametrize("variable", [{"HERRINGBONE_OBSERVER": "off"}, {"HERRINGBONE_RUN_DIR": "/proc"}])
def test_without_a_fifo_ranks_send_nothing(make_job, variable: dict[str, str]) -> None:
    job = make_job()
    job.write("import os; print(os.environ.get('HERRINGBONE_EVENTS'))\n" + EMITS, wait=0.0)
    ended = job.run(**variable)["algo-1"]
    assert ended.code == 0
    assert ended.rank_lines[0] == "[algo-1:0] None"
    assert events_of(ended) == []
    assert any("no FIFO can be made" in line for line in ended.lines) == ("HERRINGBONE_RUN_DIR" in variable)


def test_no_job_loads_the_observer_at_its_start() -> None:
    program = "import sys; import herringbone_entry.job; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    # The file by which ranks agree on a stop is made for every job.
    needed = {"herringbone_contract.events", "herringbone_contract.events.stop_file"}
    found = {name for name in loaded if "observer" in name or "contract.events" in name}
    assert found - needed == set()


def test_a_listener_that_raises_is_dropped() -> None:
    logged: list[str] = []
    heard: list[bytes] = []

    def broken(lines: bytes) -> None:
        raise KeyError("count")

    context = SimpleNamespace(prefix=b"[algo-1] ", listeners=[broken, heard.append], log=logged.append)
    stream = EventLines(context)
    assert stream.feed(b"{}\n", 0.0) == MARK + b"{}\n"
    assert stream.feed(b"[]\n", 0.0) == MARK + b"[]\n"
    # Half a line, of an observer that was killed, is no event.
    assert stream.feed(b'{"kind":', 0.0) + stream.close() == b""
    assert heard == [b"{}\n", b"[]\n"]
    assert logged == ["events are not listened to any more: KeyError: 'count'"]
