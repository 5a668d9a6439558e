"""One host as its keeper reads it, over a real pipe."""

import fcntl
import os

import pytest

from herringbone.keeper.hosts import Host


class SlowLog:
    """While it files one chunk, the host fills the pipe again."""

    def __init__(self, writer):
        self.writer, self.filed = writer, 0

    def feed(self, chunk, now):
        self.filed += 1
        assert self.filed < 5, "it files for ever"
        os.write(self.writer, chunk)


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="pipes have a fixed size here")
def test_a_host_that_writes_without_end_does_not_hold_the_keeper():
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
