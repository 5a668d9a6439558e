"""Records wait for room, and neither a slow observer nor none at all loses or holds up more than it must."""

from __future__ import annotations

from typing import Any

import pytest

from herringbone_contract.constants import RankVariable
from herringbone_contract.rehearsal.records import Step, Tensor, read
from herringbone_contract.rehearsal.sending import Sender


class Pipe:
    """Takes lines while it has room; the time is that of its clock."""

    def __init__(self) -> None:
        self.now, self.room, self.tries = 0.0, 10**9, 0
        self.events: list[dict[str, Any]] = []
        self.times: list[float] = []

    def emit(self, kind: str, **members: Any) -> bool:
        self.tries += 1
        if len(self.events) >= self.room:
            return False
        self.events.append({"kind": kind, "t": self.now, **members})
        self.times.append(self.now)
        return True

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > 30:
            self.room = 10**9

    def sender(self) -> Sender:
        return Sender(self.emit, lambda: self.now, self.sleep)


def test_a_record_waits_for_room() -> None:
    pipe = Pipe()
    pipe.room = 1
    sender = pipe.sender()
    for number in (1, 2, 3):
        sender.send(Step(number), 0)
    [process] = read(pipe.events).processes[0]
    assert ([step.number for step in process.steps], process.lost) == ([1, 2, 3], 0)
    assert 30 < pipe.now < 31


def test_a_rank_waits_once_for_a_reader_that_is_gone() -> None:
    pipe = Pipe()
    pipe.room = -1
    pipe.sleep = lambda seconds: setattr(pipe, "now", pipe.now + seconds)  # type: ignore[method-assign]
    sender = pipe.sender()
    for number in range(1, 50):
        sender.send(Step(number), 0)
    assert 60 <= pipe.now < 61
    # It has come back: a gap shows what was lost.
    pipe.room = 10**9
    sender.send(Step(50), 0)
    sender.send(Step(51), 0)
    assert [(len(one.steps), one.lost) for one in read(pipe.events).processes[0]] == [(2, 49)]


@pytest.mark.parametrize(("ranks", "most"), [("1", 600_000), ("4", 150_000), ("x", 600_000)])
def test_the_ranks_of_a_host_share_what_it_takes_in_a_second(
    monkeypatch: pytest.MonkeyPatch, ranks: str, most: int
) -> None:
    monkeypatch.setenv(RankVariable.LOCAL_WORLD_SIZE, ranks)
    pipe = Pipe()
    sender = pipe.sender()
    tensors = {f"layer {number}": Tensor(f"{number * 0x9E3779B97F4A7C15:x}") for number in range(2000)}
    for number in range(1, 40):
        sender.send(Step(number, tensors=tensors), 0)
    bytes_of = [sum(len(one["text"]) for one in pipe.events if int(one["t"]) == second) for second in range(3)]
    assert all(most // 2 < size <= most for size in bytes_of)
    for number in range(40, 1000):
        sender.send(Step(number), 0)
    assert max(sum(second <= time < second + 1 for time in pipe.times) for second in pipe.times) <= 401
