"""Events leave a host's output on the way into its log."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from herringbone.controller.log_files import EventsFile, LogFile

SAMPLE = b'{"kind":"sample","t":1.0,"cpu":0.5,"host":"algo-9"}\n'


def fed(folder: Path, *chunks: bytes) -> tuple[list[str], list[dict[str, object]]]:
    """Return the texts of the log, without times, and the events."""
    log = LogFile(str(folder / "algo-1.log"))
    for chunk in chunks:
        log.feed(chunk, 0.0)
    log.close(0.0)
    events = folder / "algo-1.events"
    # Not `splitlines`, which takes the mark of an event for the end of a line.
    lines = (folder / "algo-1.log").read_bytes().decode().split("\n")[:-1]
    return (
        [line.partition("Z ")[2] for line in lines],
        [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else [],
    )


def test_events_of_the_supervisor_leave_the_log(tmp_path: Path) -> None:
    output = b"[algo-1:0] a\n[algo-1] \x1e" + SAMPLE + b"[algo-1] \x1e" + SAMPLE + b"[algo-1] b\n"
    sample = {"kind": "sample", "t": 1.0, "cpu": 0.5, "host": "algo-1"}
    assert fed(tmp_path, output[:30], output[30:]) == (["[algo-1:0] a", "[algo-1] b"], [sample, sample])


@pytest.mark.parametrize(
    "line",
    [
        # A rank's own output, or another host's, or a text in the middle of a line.
        b"[algo-1:0] \x1e" + SAMPLE,
        b"[algo-2] \x1e" + SAMPLE,
        b"x [algo-1] \x1e" + SAMPLE,
        # No events, and one that only the controller may write.
        b"[algo-1] \x1eno event\n",
        b'[algo-1] \x1e{"kind":"sample"}\n',
        b'[algo-1] \x1e{"kind":"state","t":1.0,"state":"Completed"}\n',
        b'[algo-1] \x1e{"kind":"sample","t":1.0,"cpu":NaN}\n',
        b'[algo-1] \x1e{"kind":"alive","t":1.0}\n',
        b'[algo-1] \x1e{"kind":"alive","t":1.0,"every":"x"}\n',
        b'[algo-1] \x1e{"kind":"alive","t":1.0,"every":-1}\n',
        b'[algo-1] \x1e{"kind":"alive","t":1.0,"every":NaN}\n',
        b'[algo-1] \x1e{"kind":"alive","t":1.0,"every":1e999}\n',
    ],
)
def test_all_else_stays_in_the_log(tmp_path: Path, line: bytes) -> None:
    assert fed(tmp_path, line) == ([line.decode().rstrip("\n")], [])
    # Nobody looks for the file of a host without events.
    assert not (tmp_path / "algo-1.events").exists()


def test_an_event_does_not_end_a_progress_bar(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "algo-1.log"))
    log.feed(b"[algo-1:0] \r10%\n", 0.0)
    log.feed(b"[algo-1] \x1e" + SAMPLE, 0.0)
    assert (tmp_path / "algo-1.live").exists()
    assert (tmp_path / "algo-1.log").read_bytes() == b""
    log.close(0.0)


def test_a_full_disk_loses_events_alone(tmp_path: Path) -> None:
    os.symlink("/dev/full", tmp_path / "algo-1.events")
    log = LogFile(str(tmp_path / "algo-1.log"))
    log.feed(b"[algo-1] \x1e" + SAMPLE + b"[algo-1:0] a\n", 0.0)
    log.close(0.0)
    assert log.lost == 0
    assert (tmp_path / "algo-1.log").read_bytes().endswith(b"Z [algo-1:0] a\n")


def test_the_file_of_events_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "algo-1.events"
    events = EventsFile(str(path), "algo-1", most_bytes=150)
    assert all(events.take(SAMPLE.rstrip(b"\n")) for _ in range(9))
    events.close()
    assert len(path.read_bytes().splitlines()) == 150 // (len(SAMPLE))


def test_signs_of_life_are_kept_in_no_file_and_for_one_attempt(tmp_path: Path) -> None:
    """A restarted host may install packages for minutes, and promises nothing before its ranks start."""
    log = LogFile(str(tmp_path / "algo-1.log"))
    log.feed(b'[algo-1] \x1e{"kind":"alive","t":1.0,"every":5.0}\n[algo-1:0] up\n', 0.0)
    assert (log.heartbeat, (tmp_path / "algo-1.events").exists()) == (5.0, False)
    assert log.begin_attempt() == log.size
    assert log.heartbeat == 0.0
    log.close(0.0)


def test_an_alive_event_names_what_somebody_has_stopped(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "algo-1.log"))
    log.feed(b'[algo-1] \x1e{"kind":"alive","t":1.0,"every":5.0,"stopped":["rank 0", 3, "a\\u001bb"]}\n', 0.0)
    assert log.stopped == ("rank 0",)
    log.feed(b'[algo-1] \x1e{"kind":"alive","t":6.0,"every":5.0}\n', 0.0)
    assert log.stopped == ()
    log.close(0.0)
