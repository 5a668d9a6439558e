"""The advice that a job says once, and what it follows from."""

from __future__ import annotations

import contextlib
import io
import threading

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from herringbone_parallel.reduce.advising import Step
from herringbone_parallel.torch.data_parallel.advising import Clock, GradientObserver
from tests.parallel.torch.data_parallel.ranks import JobRanks
from tests.parallel.torch.data_parallel.test_ddp import join


def step(net: nn.Module) -> None:
    net(torch.ones(2, 4)).sum().backward()


def hear_advice(steps: int) -> str:
    join()
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        for _ in range(2):  # a second model says nothing of its own
            net = DistributedDataParallel(nn.Linear(4, 4))
            for _ in range(steps):
                step(net)
        for thread in threading.enumerate():
            if thread.name == "herringbone-advice":
                thread.join()
    return said.getvalue()


def test_rank_0_says_it_once_in_the_third_step(pair: JobRanks) -> None:
    line = "herringbone: One host: gradients are summed in its memory, and nothing crosses a network.\n"
    assert pair.run(hear_advice, 4) == [line, ""]
    assert pair.run(hear_advice, 2) == ["", ""]


class Ticks(Clock):
    """Each mark is a second after the one before."""

    def __init__(self) -> None:
        self._marks = 0

    def mark(self) -> int:
        self._marks += 1
        return self._marks


def observe(withheld: int) -> list[Step]:
    """Train on batches of which so many are added up before each that is summed."""
    join()
    net = DistributedDataParallel(nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False)))
    seen: list[Step] = []
    GradientObserver(net, Ticks(), seen.append)
    for _ in range(5):
        with net.no_sync():
            for _ in range(withheld):
                step(net)
        step(net)
    return seen


def test_a_step_is_seen_gradient_by_gradient(pair: JobRanks) -> None:
    for seen in pair.run(observe, 0):
        (found,) = seen
        assert [(one.size, one.ready_s) for one in found.gradients] == [(24, 1.0), (48, 2.0)]
        assert (found.forward_s, found.backward_s, found.element) == (1.0, 2.0, "float32")


def test_passes_that_are_not_summed_count_as_computing(pair: JobRanks) -> None:
    for seen in pair.run(observe, 2):
        assert [(found.forward_s, found.backward_s) for found in seen] == [(3 * 1.0 + 2 * 2.0, 2.0)]
