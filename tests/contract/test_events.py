"""Events: what is written is read, values are joined without loss, and damaged lines are no events."""

from __future__ import annotations

import math
import os

import pytest

from herringbone_contract.events import emit
from herringbone_contract.events.format import MAX_BATCH, Point, batches, encode, parse


def values(events) -> list[tuple[str, int | None, list[float]]]:
    return [(event["name"], event["step"], event["values"]) for event in events]


def test_values_of_one_metric_are_joined_and_others_are_kept_apart() -> None:
    points = [Point(float(n), name, n / 2, n) for n in range(4) for name in ("loss", "lr")]
    assert values(batches(points)) == [("loss", 0, [0.0, 0.5, 1.0, 1.5]), ("lr", 0, [0.0, 0.5, 1.0, 1.5])]


@pytest.mark.parametrize(
    ("steps", "batched"),
    [
        ([1, 2, 3], [(1, 3)]),
        ([10, 20, 30, 31], [(10, 3), (31, 1)]),
        # An evaluation begins anew at each epoch, and a resumed job goes back.
        ([5, 6, 2, 3], [(5, 2), (2, 2)]),
        ([None, None], [(None, 2)]),
        ([None, 1], [(None, 1), (1, 1)]),
        (list(range(MAX_BATCH + 1)), [(0, MAX_BATCH), (MAX_BATCH, 1)]),
    ],
)
def test_steps_are_those_of_the_points(steps, batched) -> None:
    events = list(batches(Point(float(n), "loss", 0.5, step) for n, step in enumerate(steps)))
    assert [(event["step"], len(event["values"])) for event in events] == batched


def test_numbers_that_are_not_finite_survive_json() -> None:
    [event] = batches([Point(1.0, "loss", math.nan), Point(2.0, "loss", -math.inf)])
    read = parse(encode(event))
    assert read is not None
    first, second = (float(value) for value in read["values"])
    assert math.isnan(first)
    assert second == -math.inf


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"{}", b'{"kind":1,"t":1}', b'{"kind":"a"}', b'{"kind":"a","t":true}', b"[" * 40_000]
)
def test_a_line_that_is_no_event_is_none(line: bytes) -> None:
    assert parse(line) is None


def test_a_rank_sends_events_and_never_waits(tmp_path, monkeypatch) -> None:
    fifo = tmp_path / "events"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setenv(emit.VARIABLE, str(fifo))
    monkeypatch.setenv(emit.RANK_VARIABLE, "3")
    emit.metric("loss", 0.5, step=2)
    read = parse(os.read(reader, 4096).rstrip())
    assert read is not None
    assert (read["kind"], read["rank"], read["name"], read["value"], read["step"]) == ("metric", 3, "loss", 0.5, 2)
    # Nobody reads: what finds no room is dropped.
    for step in range(3000):
        emit.metric("loss", 0.5, step=step)
    emit.emit("progress", text="x" * 5000)
    os.close(reader)
    emit.metric("loss", 0.5)
    monkeypatch.delenv(emit.VARIABLE)
    emit.metric("loss", 0.5)
