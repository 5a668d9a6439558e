"""Events of ranks, which a script may write as it likes: only known members of the right types and sizes pass."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from herringbone_contract.events.format import Point, encode
from herringbone_entry.observer.fifo import Budget, Fifo, check

NOW = 1000.0


def metric(**members: object) -> dict[str, Any]:
    return {"kind": "metric", "t": NOW, "rank": 0, "name": "loss", "value": 0.5, "step": 1, "source": "smp", **members}


@pytest.mark.parametrize(
    ("event", "item"),
    [
        (metric(), Point(NOW, "loss", 0.5, 1, 0, "smp")),
        (metric(rank=None, step=None, source=None), Point(NOW, "loss", 0.5, None, None, "script")),
        (metric(value="inf"), Point(NOW, "loss", float("inf"), 1, 0, "smp")),
        # As `log_metrics` keeps it: a loss that diverges is no mistake of the event.
        (metric(value=-1.7e308), Point(NOW, "loss", -1.7e308, 1, 0, "smp")),
        (metric(name="x" * 999), Point(NOW, "x" * 256, 0.5, 1, 0, "smp")),
        # The clocks of a machine agree, so a time of another century is a mistake.
        (metric(t=1e300), Point(NOW, "loss", 0.5, 1, 0, "smp")),
        (metric(t=NOW - 60), Point(NOW - 60, "loss", 0.5, 1, 0, "smp")),
        (
            {"kind": "progress", "t": NOW, "rank": 1, "done": 1, "total": None, "unit": "step", "eta": None, "x": "y"},
            {"kind": "progress", "t": NOW, "rank": 1, "done": 1, "total": None, "unit": "step", "eta": None},
        ),
        (
            {"kind": "steps", "t": NOW, "rank": 1, "count": 2, "since": 999.0, "seconds": [0.5, 0.25]},
            {"kind": "steps", "t": NOW, "rank": 1, "count": 2, "since": 999.0, "seconds": [0.5, 0.25]},
        ),
        (
            {"kind": "timeline", "t": NOW, "rank": 1, "step": 2, "spans": [["f", 0, 0, 0.0, 1.0]], "since": 9.0},
            {"kind": "timeline", "t": NOW, "rank": 1, "step": 2, "spans": [["f", 0, 0, 0.0, 1.0]], "since": 9.0},
        ),
    ],
)
def test_what_ranks_may_send(event: dict[str, Any], item: object) -> None:
    assert check(event, NOW) == item


@pytest.mark.parametrize(
    "event",
    [
        # Of others: the supervisor, the controller, nobody.
        *({"kind": kind, "t": NOW} for kind in ("state", "bill", "sample", "stacks", "answer", "lost", "x")),
        *(metric(rank=rank) for rank in (-1, True, 1 << 40, "0", [0])),
        *(metric(value=value) for value in (None, True, "0.5", [], float("nan"), 10**400)),
        *(metric(name=name) for name in ("", None, 7, ["loss"])),
        *(metric(step=step) for step in (0.5, True, "1", 1 << 60)),
        {"kind": "progress", "t": NOW, "done": 1, "total": "many", "unit": "step", "eta": None},
        {"kind": "progress", "t": NOW, "done": 1, "total": 2, "unit": "x" * 999, "eta": None},
        {"kind": "steps", "t": NOW, "count": 1, "since": NOW, "seconds": [0.0] * 1001},
        {"kind": "steps", "t": NOW, "count": 1, "since": NOW, "seconds": ["0.5"]},
        {"kind": "timeline", "t": NOW, "step": 1, "spans": [{"a": 1}]},
        {"kind": "timeline", "t": NOW, "step": 1, "spans": [[["deep"]]]},
        {"kind": "metrics", "t": NOW, "name": "a", "source": "smp", "since": NOW, "values": ["1"]},
    ],
)
def test_what_they_may_not(event: dict[str, Any]) -> None:
    assert check(event, NOW) is None


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_lines_that_are_no_events_are_dropped(ends: tuple[int, int]) -> None:
    reader, writer = ends
    os.write(writer, b"\n\xff\xfe\n" + b"[" * 3000 + b"\n{}\nNaN\n" + json.dumps(metric()).encode() + b'\n{"kind":"me')
    source = Fifo(reader)
    assert source.poll(NOW) == [Point(NOW, "loss", 0.5, 1, 0, "smp")]
    # The rest of a line comes with the next read.
    os.write(writer, b'tric","t":1000,"name":"a","value":1}\n')
    assert source.poll(NOW) == [Point(NOW, "a", 1.0)]


def test_a_rank_that_sends_too_much_loses_its_own_events_alone(ends: tuple[int, int]) -> None:
    reader, writer = ends
    lines = [json.dumps(metric(rank=rank)).encode() + b"\n" for rank in (0, 0, 0, 0, 0, 1)]
    os.write(writer, b"".join(lines))
    source = Fifo(reader, Budget(max_events=3))
    items = source.poll(NOW)
    assert [item.rank for item in items if isinstance(item, Point)] == [0, 0, 0, 1]
    [lost] = [item for item in items if not isinstance(item, Point)]
    assert lost == {"kind": "lost", "t": NOW, "rank": 0, "count": 2}
    # Within the same second no more, and each loss is reported once.
    os.write(writer, lines[0])
    assert source.poll(NOW + 0.5) == [{"kind": "lost", "t": NOW + 0.5, "rank": 0, "count": 1}]
    os.write(writer, lines[0])
    assert len(source.poll(NOW + 1.5)) == 1


def test_lines_beyond_a_limit_are_not_even_parsed(ends: tuple[int, int]) -> None:
    reader, writer = ends
    os.write(writer, b"x\n" * 9)
    assert Fifo(reader, Budget(max_lines=2)).poll(NOW) == [{"kind": "lost", "t": NOW, "rank": None, "count": 7}]


def test_everything_that_passes_can_be_encoded(ends: tuple[int, int]) -> None:
    reader, writer = ends
    event = {"kind": "steps", "t": NOW, "rank": 0, "count": 1 << 52, "since": 1e299, "seconds": [1e-300] * 500}
    os.write(writer, json.dumps(event).encode() + b"\n")
    [item] = Fifo(reader).poll(NOW)
    assert not isinstance(item, Point)
    assert encode(item)


def test_records_of_a_rehearsal_pass_in_any_number_and_of_one_size(ends: tuple[int, int]) -> None:
    reader, writer = ends
    event = {
        "kind": "fingerprint",
        "t": NOW,
        "rank": 0,
        "process": "a",
        "number": 1,
        "part": 0,
        "parts": 1,
        "text": "x",
    }
    for text in ["x", "x", "x" * 5000, 7]:
        os.write(writer, json.dumps({**event, "text": text}).encode() + b"\n")
    assert Fifo(reader, Budget(max_events=1)).poll(NOW) == [event, event]
