"""One host as its controller reads it, over a real pipe; and the controller's turns."""

import fcntl
import os
import selectors
import signal

import pytest

from herringbone.controller.controller import Controller
from herringbone.controller.hosts import Host


class SlowLog:
    """While it files one chunk, the host fills the pipe again."""

    def __init__(self, writer):
        self.writer, self.filed = writer, 0

    def feed(self, chunk, now):
        self.filed += 1
        assert self.filed < 5, "it files for ever"
        os.write(self.writer, chunk)


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="pipes have a fixed size here")
def test_a_host_that_writes_without_end_does_not_hold_the_controller():
    """With a slow disk the pipe was full again after each read, and neither a stop nor max_run was ever looked at."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.write(writer, bytes(fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)))
    host = Host({"name": "algo-1", "base": ""}, SlowLog(writer))
    host.output = reader
    host.drain()
    assert host.log.filed == 1
    host.hang_up()
    os.close(writer)


class Ended:
    """A site whose only host has ended."""

    def __init__(self, host):
        self.hosts = [host]

    def start(self):
        pass

    def endings(self):
        return [(host, 0) for host in self.hosts if host.exit_code is None]

    def sweep(self):
        pass


def test_a_host_whose_end_and_whose_last_output_come_at_once_has_ended():
    """The signal came first in the turn and closed the pipe; the pipe's own turn then killed the controller."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    host = Host({"name": "algo-1", "base": ""}, SlowLog(writer))
    host.output = reader
    controller = Controller({"stop_grace": 1.0, "patience": 1.0, "max_run": 60.0, "warning": 0.0}, Ended(host))
    wakeup, ring = os.pipe()
    controller._selector.register(wakeup, selectors.EVENT_READ)
    controller._start_hosts()
    os.write(ring, bytes([signal.SIGCHLD]))
    os.close(writer)
    controller._turn(wakeup)
    assert host.over
