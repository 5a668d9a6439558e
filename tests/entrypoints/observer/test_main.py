"""The observer's loop: it never waits for its reader, and one broken source does not end the others."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from herringbone_contract.events.format import Event, Point
from herringbone_entry.observer.main import Observer, make_sources
from herringbone_entry.observer.settings import Settings
from herringbone_entry.observer.source import Source


class Scripted(Source):
    """Returns the next items at each poll."""

    def __init__(self, *polls: list[Event | Point], descriptors: Sequence[int] = ()) -> None:
        self.polls, self.ranks, self.closed = list(polls), {}, False
        self._descriptors = descriptors

    @property
    def descriptors(self) -> Sequence[int]:
        return self._descriptors

    def poll(self, now: float) -> list[Event | Point]:
        for descriptor in self._descriptors:
            os.read(descriptor, 100)
        return self.polls.pop(0) if self.polls else []

    def last(self, now: float) -> list[Event | Point]:
        return [{"kind": "progress", "t": now, "rank": 9, "done": 1}]

    def ranks_changed(self, ranks: Mapping[int, int]) -> None:
        self.ranks = ranks

    def close(self) -> None:
        self.closed = True


class Raising(Source):
    def poll(self, now: float) -> list[Event | Point]:
        raise ValueError(f"two\nlines at {now > 0}")


class Ends:
    """Both ends of the observer's two pipes."""

    def __init__(self) -> None:
        self.orders, self.orders_writer = os.pipe()
        self.reader, self.output = os.pipe()
        os.set_blocking(self.reader, False)
        self.complaints: list[str] = []

    def observer(self, *sources: Source, interval: float = 0.02) -> Observer:
        settings = Settings("algo-1", os.getpid(), output_interval=interval)
        return Observer(settings, sources, orders=self.orders, output=self.output, complain=self.complaints.append)

    def end(self) -> None:
        os.close(self.orders_writer)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in os.read(self.reader, 1 << 20).splitlines()]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    for descriptor in (ends.orders, ends.reader, ends.output):
        os.close(descriptor)


def test_the_end_of_the_orders_flushes_and_closes(ends: Ends) -> None:
    source = Scripted([])
    os.write(ends.orders_writer, b'{"ranks": {"0": 77}}\n')
    ends.end()
    ends.observer(source).run()
    # `last` and not `poll`.
    assert [(event["kind"], event["rank"]) for event in ends.events()] == [("progress", 9)]
    assert source.closed
    assert source.ranks == {0: 77}


def test_a_flush_batches_points_and_keeps_the_newest_progress(ends: Ends) -> None:
    progress = [{"kind": "progress", "t": float(done), "rank": 0, "done": done} for done in range(3)]
    observer = ends.observer(Scripted([*progress, Point(1.0, "a", 0.5, 1), Point(2.0, "a", 0.25, 2)]))
    observer._poll(observer._sources)
    observer.flush()
    assert [(event["kind"], event.get("done"), event.get("values")) for event in ends.events()] == [
        ("progress", 2, None),
        ("metrics", None, [0.5, 0.25]),
    ]


def test_a_source_that_raises_is_reported_once_and_dropped(ends: Ends) -> None:
    good = Scripted([{"kind": "a", "t": 1.0}], [{"kind": "b", "t": 1.0}])
    observer = ends.observer(Raising(), good)
    for _ in range(2):
        observer._poll(observer._sources)
    observer.flush()
    assert [event["kind"] for event in ends.events()] == ["a", "b"]
    assert ends.complaints == ["Raising: ValueError: two\nlines at True; this source ends here"]


def test_events_that_cannot_be_written_are_counted(ends: Ends) -> None:
    observer = ends.observer(
        Scripted([{"kind": "a", "t": 1.0, "text": "x" * 70_000}, {"kind": "b", "t": float("nan")}])
    )
    observer._poll(observer._sources)
    observer.flush()
    observer.flush()
    [lost] = ends.events()
    assert (lost["kind"], lost["count"]) == ("lost", 2)


def test_a_reader_that_does_not_read_is_not_waited_for(ends: Ends) -> None:
    size = 60_000
    observer = ends.observer(Scripted([{"kind": "a", "t": 1.0, "text": "x" * size} for _ in range(40)]))
    observer._poll(observer._sources)
    observer.flush()
    # What the pipe and the queue took arrives whole; the others are counted.
    text = b""
    for _ in range(200):
        try:
            text += os.read(ends.reader, 1 << 20)
        except BlockingIOError:
            observer._write()
            if not observer._waiting:
                break
    observer.flush()
    text += os.read(ends.reader, 1 << 20)
    events = [json.loads(line) for line in text.splitlines()]
    lost = sum(event["count"] for event in events if event["kind"] == "lost")
    assert 0 < lost < 40
    assert len([event for event in events if event["kind"] == "a"]) == 40 - lost


def test_a_readable_descriptor_is_served_at_once(ends: Ends) -> None:
    reader, writer = os.pipe()
    source = Scripted([], [{"kind": "a", "t": 1.0}], descriptors=[reader])
    os.write(writer, b"x" * 100)
    observer = ends.observer(source, interval=60.0)
    thread = threading.Thread(target=observer.run)
    thread.start()
    deadline = time.monotonic() + 5
    os.write(writer, b"x")
    while source.polls and time.monotonic() < deadline:
        time.sleep(0.005)
    ends.end()
    thread.join(5)
    assert not thread.is_alive()
    assert [event["kind"] for event in ends.events()] == ["a", "progress"]
    os.close(reader)
    os.close(writer)


def test_a_source_that_cannot_begin_costs_a_line(tmp_path) -> None:
    complaints: list[str] = []
    # A descriptor that is not open.
    settings = Settings("algo-1", os.getpid(), events=9999, checkpoints=str(tmp_path), output_data=str(tmp_path))
    sources = make_sources(settings, complaints.append)
    assert "Checkpoints" in [type(source).__name__ for source in sources]
    assert "Fifo" not in [type(source).__name__ for source in sources]
    assert len(complaints) == 1
    assert complaints[0].startswith("a source of events cannot begin: OSError: ")


def test_sources_wait_for_a_reader_that_does_not_keep_up(ends: Ends) -> None:
    lines = [[{"kind": "a", "t": 1.0, "text": "x" * 60_000}] * 9 for _ in range(20)]
    source = Scripted(*lines)
    observer = ends.observer(source, interval=0.001)
    thread = threading.Thread(target=observer.run)
    thread.start()
    text = b""
    # Nothing is read until the queue is full.
    deadline = time.monotonic() + 5
    while observer._waiting_size < 400_000 and time.monotonic() < deadline:
        time.sleep(0.001)
    while text.count(b"\n") < 180 and time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            text += os.read(ends.reader, 1 << 20)
    ends.end()
    thread.join(5)
    assert [json.loads(line)["kind"] for line in text.splitlines()[:180]] == ["a"] * 180
