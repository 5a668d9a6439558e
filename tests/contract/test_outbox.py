"""Values of metrics that are more than a host takes at once wait, and all of them arrive in order."""

from __future__ import annotations

import os
from typing import Any

import pytest

from herringbone_contract.events import emit
from herringbone_contract.events.format import Point
from herringbone_contract.events.outbox import Outbox
from herringbone_entry.observer.fifo import Fifo


class Host:
    """A FIFO of the kernel's own size, and the observer that empties it once a second."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self._fifo = Fifo(self.reader)
        self.now, self.events = 1000.0, []

    def send(self, **event: Any) -> bool:
        try:
            return os.write(self.writer, emit_line(event)) > 0
        except BlockingIOError:
            return False

    def second(self) -> None:
        self.now += 1.0
        self.events += self._fifo.poll(self.now)

    def values(self, name: str) -> list[tuple[int, float]]:
        found = []
        for event in self.events:
            assert event["kind"] == "metrics", event
            if event["name"] == name:
                by = event["by"] or 0
                found += [(event["step"] + number * by, value) for number, value in enumerate(event["values"])]
        return found


def emit_line(event: dict[str, Any]) -> bytes:
    import json

    line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
    assert len(line) <= emit.MAX_LINE_BYTES
    return line


@pytest.fixture
def host() -> Any:
    host = Host()
    yield host
    os.close(host.reader)
    os.close(host.writer)


# The longest name is one of 12 bytes a character.
@pytest.mark.parametrize(
    ("name", "steps"), [("loss", "every fifth"), ("loss", "irregular"), ("\U0001f3af" * 128, "every fifth")]
)
def test_thousands_of_values_a_second_arrive_exactly(host: Host, name: str, steps: str) -> None:
    box, sent = Outbox(host.send), []
    for number in range(2_000):
        step = 5 * number if steps == "every fifth" else number * number
        sent.append((step, -1 / (number + 3) * 1e-200))
        box.add(Point(host.now + number / 3_000, name, sent[-1][1], step, 0, "huggingface"))
    waits = []

    def sleep(_: float) -> None:
        waits.append(box.waiting)
        host.second()

    assert box.waiting
    assert box.close(lambda: host.now, sleep) == 0
    host.second()
    assert host.values(name) == sent
    # Every wait was for some of them.
    assert waits == sorted(set(waits), reverse=True)


def test_a_value_is_sent_at_once_where_there_are_few(host: Host) -> None:
    box = Outbox(host.send)
    box.add(Point(host.now, "loss", 0.5, 10, 0, "huggingface"))
    assert box.waiting == 0
    host.second()
    assert host.values("loss") == [(10, 0.5)]


def test_what_nobody_takes_is_counted(host: Host, capsys: Any) -> None:
    box = Outbox(lambda **_: False, max_waiting=100)
    for number in range(150):
        box.add(Point(host.now, "loss", 0.5, number, 0, "huggingface"))

    def sleep(seconds: float) -> None:
        host.now += seconds

    assert box.close(lambda: host.now, sleep) == 150
    assert box.close(lambda: host.now, sleep) == 0
    assert capsys.readouterr().err.count("herringbone: 150 values of metrics are lost") == 1
    box.add(Point(host.now, "loss", 0.5, 1, 0, "huggingface"))
    assert box.close(lambda: host.now, sleep) == 1
    assert capsys.readouterr().err.startswith("herringbone: 1 values of metrics are lost")
