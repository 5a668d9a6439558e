"""The observer of a host: collects events of its ranks and samples of its resources, and flushes them once a second.

    orders (a pipe)  <-  the supervisor: a line of settings, then {"ranks": {...}} when ranks change, and {"unit": ...}
                         when another host has removed a checkpoint; then the end
    standard output  ->  the supervisor: one event per line, as `events.format` writes it

The observer is a process of its own, because a source may hang (a driver, a network file system) or crash, and the
supervisor may not. Nobody waits for it: it never blocks on its output, and its end does not end the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from herringbone_contract.events.format import Event, Point, batches, encode
from herringbone_entry.observer.checkpoints import Checkpoints
from herringbone_entry.observer.fifo import Fifo
from herringbone_entry.observer.gpus import GpuReader
from herringbone_entry.observer.hugging_face import HuggingFace
from herringbone_entry.observer.sampler import Sampler
from herringbone_entry.observer.settings import Settings
from herringbone_entry.observer.source import Source
from herringbone_entry.observer.tensorboard import TensorBoard
from herringbone_entry.observer.usage import HostUsage
from herringbone_entry.processes import die_with

_READ_BYTES = 65_536
# A supervisor whose own output is blocked does not read: further events are dropped, and counted.
_MAX_WAITING_BYTES = 2 << 20
# From here on sources wait, too: ranks wait for room in the FIFO with what must not be lost (`rehearsal.sending`).
_FULL_BYTES = 1 << 19
# Values that wait for a flush.
_MAX_POINTS = 50_000
# Of these, only the newest of each rank in a flush is worth a line.
_NEWEST_ONLY = ("progress",)


class Observer:
    """Polls sources and writes their events to `output` until the orders end; `complain` takes a line for the log."""

    def __init__(
        self,
        settings: Settings,
        sources: Sequence[Source],
        *,
        orders: int,
        output: int,
        complain: Callable[[str], None],
    ) -> None:
        self._settings, self._sources = settings, list(sources)
        self._orders, self._output, self._complain = orders, output, complain
        self._order_text = b""
        self._points: list[Point] = []
        self._events: list[Event] = []
        # Whole lines, and the rest of the one that the pipe has taken in part.
        self._waiting: deque[bytes] = deque()
        self._waiting_size = 0
        self._lost = 0
        os.set_blocking(orders, False)
        os.set_blocking(output, False)

    def run(self) -> None:
        """Collect and flush until the orders end; then collect and flush a last time."""
        due = time.monotonic()
        ended = False
        while not ended:
            ready = self._wait(max(0.0, due - time.monotonic()))
            if self._orders in ready:
                ended = self._obey()
            now = time.monotonic()
            if ended:
                # The supervisor reads on, and ends this process if that takes too long.
                os.set_blocking(self._output, True)
            self._write()
            if ended or now >= due:
                if ended or self._waiting_size < _FULL_BYTES:
                    self._poll(self._sources, ended=ended)
                self.flush()
                # A late flush, for example of a machine that was suspended, is not made up for.
                due = max(due + self._settings.output_interval, now)
            elif ready:
                self._poll([source for source in self._sources if not ready.isdisjoint(source.descriptors)])
        for source in self._sources:
            self._try(source, source.close)

    def flush(self) -> None:
        """Write what has been collected, as much as the pipe takes now."""
        if self._lost:
            self._events.append({"kind": "lost", "t": time.time(), "rank": None, "count": self._lost})
        newest = {(event["kind"], event.get("rank")): event for event in self._events if event["kind"] in _NEWEST_ONLY}
        kept = [event for event in self._events if event["kind"] not in _NEWEST_ONLY]
        self._lost = 0
        for event in [*kept, *newest.values(), *batches(self._points)]:
            self._queue(event)
        self._events, self._points = [], []
        self._write()

    def _wait(self, seconds: float) -> set[int]:
        watched = [self._orders, *(number for source in self._sources for number in source.descriptors)]
        return set(select.select(watched, [self._output] if self._waiting else [], [], seconds)[0])

    def _obey(self) -> bool:
        """Read orders; return True at their end."""
        try:
            chunk = os.read(self._orders, _READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            return True
        *lines, self._order_text = (self._order_text + chunk).split(b"\n")
        for line in lines:
            order = json.loads(line)
            for source in list(self._sources):
                if "unit" in order:
                    self._try(source, partial(source.obey, order))
                else:
                    ranks = {int(rank): pid for rank, pid in order["ranks"].items()}
                    self._try(source, partial(source.ranks_changed, ranks))
        return False

    def _poll(self, sources: Sequence[Source], *, ended: bool = False) -> None:
        for source in list(sources):
            # Between two flushes, a source without descriptors is polled once.
            self._try(source, partial(source.heard, self._points))
            self._try(source, partial(self._take, source.last if ended else source.poll))
        excess = len(self._points) - _MAX_POINTS
        if excess > 0:
            del self._points[:excess]
            self._lost += excess

    def _take(self, poll: Callable[[float], list[Event | Point]]) -> None:
        for item in poll(time.time()):
            if isinstance(item, Point):
                self._points.append(item)
            else:
                self._events.append(item)

    def _try(self, source: Source, action: Callable[[], None]) -> None:
        """Call a method of a source; drop a source that raises."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - sources read what scripts write, and the others must go on
            if source in self._sources:
                self._sources.remove(source)
                self._complain(f"{type(source).__name__}: {type(error).__name__}: {error}; this source ends here")

    def _queue(self, event: Event) -> None:
        try:
            line = encode(event)
        except (ValueError, TypeError, RecursionError):
            self._lost += 1
            return
        if self._waiting_size + len(line) > _MAX_WAITING_BYTES:
            self._lost += 1
            return
        self._waiting.append(line)
        self._waiting_size += len(line)

    def _write(self) -> None:
        while self._waiting:
            line = self._waiting[0]
            try:
                written = os.write(self._output, line)
            except BlockingIOError:
                return
            self._waiting_size -= written
            if written < len(line):
                self._waiting[0] = line[written:]
                return
            self._waiting.popleft()


def make_sources(settings: Settings, complain: Callable[[str], None]) -> list[Source]:
    """Return the sources of a host; one that cannot begin costs a line in the log, and the others begin."""
    sources: list[Source] = []

    def add(make: Callable[[], Source]) -> None:
        try:
            sources.append(make())
        except Exception as error:  # noqa: BLE001 - as in `Observer._try`
            complain(f"a source of events cannot begin: {type(error).__name__}: {error}")

    if settings.events is not None:
        add(partial(Fifo, settings.events))
    if settings.status_listener is not None and settings.status_token is not None:
        add(partial(HuggingFace, settings.status_listener, settings.status_token))
    folders = [folder for folder in (settings.tensorboard, settings.output_data) if folder]
    add(lambda: TensorBoard(folders, since=settings.started))
    if sys.platform == "linux":
        # Other systems have no /proc.
        add(partial(_sampler, settings))
    plain = partial(Checkpoints, settings.checkpoints, since=settings.started)
    add(plain if settings.keep is None else partial(_keeper, settings, complain))
    if settings.drain is not None:
        # Few jobs have one, and its module loads an HTTP client.
        from herringbone_entry.observer.drain import DrainNotice

        add(partial(DrainNotice, settings.drain))
    return sources


def _keeper(settings: Settings, complain: Callable[[str], None]) -> Source:
    # Few jobs have one.
    from herringbone_entry.observer.keeper import Keeper

    return Keeper(settings, complain)


def _sampler(settings: Settings) -> Source:
    gpus = GpuReader(os.environ.get("CUDA_VISIBLE_DEVICES"))
    return Sampler(HostUsage(settings.supervisor), settings.ranks, gpus, least=settings.sample_interval)


def main() -> None:
    """Run with the orders at the descriptor that the first argument names."""
    die_with(os.getppid())
    orders = int(sys.argv[1])
    output = os.dup(1)
    # A library that prints must not write between events.
    os.dup2(2, 1)
    line = b""
    while not line.endswith(b"\n"):
        # Byte by byte: further orders belong to the loop.
        byte = os.read(orders, 1)
        if not byte:
            return
        line += byte
    settings = Settings.decode(line)

    def complain(text: str) -> None:
        # One line, of a bounded length, whatever an error says.
        with contextlib.suppress(OSError):
            os.write(2, f"observer: {' '.join(text.split())[:500]}\n".encode("utf-8", "replace"))

    observer = Observer(settings, make_sources(settings, complain), orders=orders, output=output, complain=complain)
    # The supervisor is gone when its end of the output is, and reports nothing any more.
    with contextlib.suppress(BrokenPipeError):
        observer.run()
    # A thread of a source may hang in a driver.
    os._exit(0)
