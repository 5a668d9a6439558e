"""`python -m herringbone.s3.pipes.feed`: fill the FIFOs of a job's channels in Pipe mode, as its scripts read them.

    controller                              this process, one thread for each channel of each host
    line 1: FeedOrder          ---------->  [1] open training_0, which waits for a reader
                                            [2] make training_1, write the epoch, remove training_0, close: end-of-file
                                            [3] go on with training_1
                               <----------  {"failed": "..."} if an epoch cannot be written
    end of the input           ---------->  end at once, whatever the threads wait for

The reader decides everything: one that closes its FIFO early gets the next epoch, and one that never opens it costs a
thread that sleeps. Each FIFO exists before the last one ends, so that a script may open it at once.

Started by the job's controller. The order has credentials, so it comes through a pipe.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import signal
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import msgspec

from herringbone.aws.session import AwsSession
from herringbone.s3.bucket import Buckets
from herringbone.s3.pipes.content import Content
from herringbone.s3.pipes.order import FeedOrder, Pipe, fifo_name
from herringbone_contract import safe_tree
from herringbone_contract.errors import HerringboneError
from herringbone_contract.masking import printable
from herringbone_contract.paths import INSIDE

_MODE = 0o600
# Fewer switches between writer and reader than with the kernel's 64 KiB. Linux alone has the call.
_PIPE_BYTES = 1 << 20


class ReaderLeftError(Exception):
    """The script has closed the FIFO before the epoch's end."""


class Feeder:
    """Fills the FIFOs of one channel of one host.

    >>> Feeder(pipe, connect).run()                                     # doctest: +SKIP

    `run` never returns: the process ends when the job does. It raises the errors of `Content`, and `OSError` where the
    script has replaced a FIFO.
    """

    def __init__(self, pipe: Pipe, connect: Callable[[], Buckets]) -> None:
        self._pipe, self._connect = pipe, connect
        # The FIFO that is being written. It stays open after an error: its close would look like the epoch's end.
        self.fifo = -1

    def run(self, epochs: int | None = None) -> None:
        """Write one epoch after the other; `epochs` limits their number."""
        content = None
        with safe_tree.folder(self._pipe.base, str(INSIDE.data)) as data:
            for epoch in itertools.count() if epochs is None else range(epochs):
                name = fifo_name(self._pipe.channel, epoch)
                self.fifo = _opened(name, data)
                with suppress(FileExistsError):
                    os.mkfifo(fifo_name(self._pipe.channel, epoch + 1), _MODE, dir_fd=data)
                # Not before the first reader: a script may never read this channel.
                content = content or Content(self._pipe, self._connect)
                self._write_epoch(content, epoch)
                # Before the close: a script that opens it again gets an error, and no wait without end.
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=data)
                os.close(self.fifo)
                self.fifo = -1

    def _write_epoch(self, content: Content, epoch: int) -> None:
        pieces = content.epoch(epoch)
        try:
            for piece in pieces:
                self._write(piece)
        except ReaderLeftError:
            return
        finally:
            pieces.close()

    def _write(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            try:
                view = view[os.write(self.fifo, view) :]
            except BrokenPipeError:
                # An exception of its own: the connection to a bucket may raise `BrokenPipeError`, too.
                raise ReaderLeftError from None


def main(read: int = 0, write: int = 1) -> None:
    """Follow the order on the descriptor `read`, and report a failure on `write`."""
    # The controller alone decides when the job is over; a signal to its group is not meant for this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with open(read, "rb", closefd=False) as orders:
        line = orders.readline()
        if line:
            order = msgspec.json.decode(line, type=FeedOrder)
            # One for all threads: a session caches its clients, and reads credentials once.
            connect = cache(lambda: Buckets(AwsSession.by(order.access)))
            lock = threading.Lock()
            for pipe in order.pipes:
                threading.Thread(target=_feed, args=(pipe, connect, write, lock), daemon=True).start()
        # The end of the input is the end of the job.
        orders.read()
    # Threads that wait in `open` or `write` cannot be asked to end.
    os._exit(0)


def _feed(pipe: Pipe, connect: Callable[[], Buckets], write: int, lock: threading.Lock) -> None:
    feeder = Feeder(pipe, connect)
    try:
        feeder.run()
    except BaseException as error:  # noqa: BLE001 - without a word the script would wait for ever
        kind = "" if isinstance(error, (HerringboneError, OSError)) else f"{type(error).__name__}: "
        failed = f"channel {pipe.channel!r}: {kind}{printable(str(error))}"
        with lock, suppress(OSError):
            os.write(write, json.dumps({"failed": failed}).encode() + b"\n")
        # `feeder` and its FIFO live on with this thread. The script must not take the error for the epoch's end.
        threading.Event().wait()


def _opened(name: str, folder: int) -> int:
    """Open a FIFO for writing as soon as there is a reader. Raises `OSError` for anything else of that name."""
    # Without O_CREAT: the script may have removed it, and must not get a file in its place. No link is followed.
    fifo = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISFIFO(os.fstat(fifo).st_mode):
        os.close(fifo)
        raise OSError(errno.EINVAL, "the script has replaced the FIFO", name)
    with suppress(OSError, AttributeError):
        fcntl.fcntl(fifo, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return fifo


if __name__ == "__main__":
    main()
