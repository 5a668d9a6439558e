"""The tape forgets calls that nobody can ask for: no rank may then wait for a message, or miss a gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from herringbone_parallel.torch.model_parallel.runtime.deferral import Deferral
from herringbone_parallel.torch.model_parallel.runtime.graph_inputs import enter
from herringbone_parallel.torch.model_parallel.runtime.messages import Purpose
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor, Value
from herringbone_parallel.torch.model_parallel.runtime.shapes import TensorSpec
from herringbone_parallel.torch.model_parallel.runtime.tape import Move, Run, StartGradient, Tape

SPEC = TensorSpec((2,), torch.float32, True)


class Mail:
    """The mailbox of one rank, whose peers answer every wait with no gradient."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.sent: list[tuple[int, int, Any]] = []
        self.awaited: list[tuple[int, int]] = []

    def send_object(self, peer: int, serial: int, _: Purpose, content: Any) -> None:
        self.sent.append((peer, serial, content))

    send_tensor = send_object

    def wait(self, serial: int, _: Purpose, *, source: int) -> None:
        self.awaited.append((source, serial))


def step_of(rank: int, mail: Any, *, keeps: bool) -> None:
    """Make x and y on rank 0, use x on rank 1 for a result that is dropped, and y for the loss; x itself `keeps`."""
    tape = Tape()
    first = tape.segment(0)
    x, y = Value(0, 1, SPEC, None, first), Value(0, 2, SPEC, None, first)
    assert x.flow is not None
    assert y.flow is not None
    tape.add(first, Run((), [x.flow]))
    tape.add(first, Run([x.flow], [y.flow]))
    tape.move(Move(x.flow, 1))
    second = tape.segment(1)
    side, loss = Value(1, 3, SPEC, None, second), Value(1, 4, SPEC, None, second)
    assert side.flow is not None
    assert loss.flow is not None
    tape.add(second, Run([x.flow], [side.flow]))
    tape.move(Move(y.flow, 1))
    tape.add(second, Run([y.flow], [loss.flow]))
    del side
    if not keeps:
        del x
    tape.forget_unreachable()
    tape.backward([StartGradient(loss.flow, None)], mail, retain=False)


@pytest.mark.parametrize("keeps", [(True, False), (False, True), (False, False)])
def test_ranks_that_keep_a_moved_value_for_longer_await_no_other_messages(keeps: tuple[bool, bool]) -> None:
    owner, target = Mail(0), Mail(1)
    for mail, kept in zip((owner, target), keeps, strict=True):
        step_of(mail.rank, mail, keeps=kept)
    assert owner.awaited == [(1, serial) for _, serial, _ in target.sent]


@pytest.mark.parametrize("deferral", [None, Deferral()])
def test_a_gradient_comes_through_what_a_module_has_kept_of_a_dropped_call(deferral: Deferral | None) -> None:
    tape = Tape(deferral)
    mail: Any = Mail(1)
    first = tape.segment(0)
    x, y = Value(0, 1, SPEC, None, first), Value(0, 2, SPEC, None, first)
    assert x.flow is not None
    assert y.flow is not None
    tape.add(first, Run((), [x.flow]))
    tape.add(first, Run([x.flow], [y.flow]))
    # Rank 1 has received both.
    x.local, y.local = torch.ones(2), torch.ones(2)
    second = tape.segment(1)
    tape.move(Move(x.flow, 1))
    # The module keeps this tensor, and its call has returned another one, which the caller has dropped.
    kept = 3 * enter(second, PlacedTensor.wrap(x, torch.device("cpu"), lambda *_: None))
    side = Value(1, 3, SPEC, kept.clone(), second)
    assert side.flow is not None
    tape.add(second, Run([x.flow], [side.flow]))
    del side
    tape.move(Move(y.flow, 1))
    made = 2 * enter(second, PlacedTensor.wrap(y, torch.device("cpu"), lambda *_: None)) + kept
    loss = Value(1, 4, SPEC, made, second)
    tape.add(second, Run([y.flow], [loss.anchor()]))
    tape.forget_unreachable()
    tape.backward([StartGradient(loss.anchor(), torch.ones(2))], mail, retain=False)
    assert {serial: gradient.tolist() for _, serial, gradient in mail.sent} == {1: [3.0, 3.0], 2: [2.0, 2.0]}
