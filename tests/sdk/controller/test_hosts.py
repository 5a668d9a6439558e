"""Reads one host's output over a real pipe as the controller does, and runs single turns of the controller's loop."""

import fcntl
import json
import os
import selectors
import shutil
import signal

import pytest

from herringbone.controller.__main__ import parse_config
from herringbone.controller.controller import Controller
from herringbone.controller.hosts import Host
from herringbone.slots.release import free


class SlowLog:
    """A log on a slow disk: while it writes one chunk, the host fills the pipe again."""

    states: tuple[bytes, ...] = ()
    heartbeat, stopped = 0.0, ()

    def __init__(self, writer):
        self.writer, self.num_chunks = writer, 0

    def feed(self, chunk, now):
        self.num_chunks += 1
        assert self.num_chunks < 5, "one drain reads for ever"
        os.write(self.writer, chunk)


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="pipes have a fixed size here")
def test_a_host_that_writes_without_end_does_not_hold_the_controller():
    """With a slow disk the pipe was full again after each read, and the loop never checked a stop or max_run."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.write(writer, bytes(fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)))
    host = Host({"name": "algo-1", "base": ""}, SlowLog(writer))
    host.output = reader
    host.drain()
    assert host.log.num_chunks == 1
    host.close_output()
    os.close(writer)


class Ended:
    """A site whose only host has ended."""

    due = float("inf")

    def __init__(self, host):
        self.hosts = [host]

    def start(self):
        pass

    def endings(self):
        return [(host, 0) for host in self.hosts if host.exit_code is None]

    def kill_orphans(self):
        pass


def test_a_host_whose_end_and_last_output_come_together_has_ended():
    """The signal was handled first and closed the pipe; the event of the pipe then killed the controller."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    host = Host({"name": "algo-1", "base": ""}, SlowLog(writer))
    host.output = reader
    controller = Controller(
        {"stop_grace": 1.0, "patience": 1.0, "max_run": 60.0, "warning": 0.0}
        | {"claim": None, "s3": None, "pipes": None, "permit": None, "logs": "/no-such-job/logs"},
        Ended(host),
    )
    wakeup, signals = os.pipe()
    controller._selector.register(wakeup, selectors.EVENT_READ)
    controller._start_hosts()
    os.write(signals, bytes([signal.SIGCHLD]))
    os.close(writer)
    controller._wait_once(wakeup)
    assert host.over


def test_a_config_of_an_earlier_release_claims_nothing():
    """A job that waits in Slurm's queue during an upgrade has one, in a file."""
    settings = {
        "stop_grace": 1.0,
        "patience": 1.0,
        "max_run": 60.0,
        "warning": 0.0,
        "metric_definitions": [],
        "logs": "",
    }
    config = parse_config(json.dumps(settings).encode())
    Controller(config, Ended(Host({"name": "algo-1", "base": ""}, None)))
    free(config["claim"])


class Messages(list):
    """A log that keeps what the controller says."""

    def say(self, text, now):
        self.append(text)


@pytest.mark.parametrize("replaced", ["output", "output/data", "model", "output/failure.json"])
def test_the_clean_up_between_attempts_follows_no_link(tmp_path, replaced):
    """A link in place of `output` made the controller remove a folder of this machine."""
    base, outside = tmp_path / "ml", tmp_path / "outside"
    (outside / "data").mkdir(parents=True)
    for name in ("data/precious", "failure.json", "precious"):
        (outside / name).write_text("precious")
    for name in ("model", "output/data"):
        (base / name).mkdir(parents=True)
    (base / "model/old").write_text("old")
    (base / "output/failure").write_text("old")
    if (base / replaced).is_dir():
        shutil.rmtree(base / replaced)
    (base / replaced).symlink_to(outside)
    log = Messages()
    Host({"name": "algo-1", "base": str(base)}, log).clear()
    assert sorted(path.relative_to(base).as_posix() for path in base.rglob("*")) == ["model", "output", "output/data"]
    assert sorted(path.relative_to(outside).as_posix() for path in outside.rglob("*")) == [
        "data",
        "data/precious",
        "failure.json",
        "precious",
    ]
    assert log == (["[algo-1] the script had replaced output by a link or a file"] if replaced == "output" else [])
