"""The advice that a job logs once, and the timed step on which it is based."""

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


def logged_advice(steps: int) -> str:
    join()
    log = io.StringIO()
    with contextlib.redirect_stderr(log):
        for _ in range(2):  # a second model logs nothing
            net = DistributedDataParallel(nn.Linear(4, 4))
            for _ in range(steps):
                step(net)
        for thread in threading.enumerate():
            if thread.name == "herringbone-advice":
                thread.join()
    return log.getvalue()


def test_rank_0_logs_advice_once_in_the_third_step(pair: JobRanks) -> None:
    line = "herringbone: One host: gradients are summed in its memory, and nothing crosses a network.\n"
    assert pair.run(logged_advice, 4) == [line, ""]
    assert pair.run(logged_advice, 2) == ["", ""]


class Ticks(Clock):
    """A clock whose marks are one second apart."""

    def __init__(self) -> None:
        self._marks = 0

    def mark(self) -> int:
        self._marks += 1
        return self._marks


def observe(withheld: int) -> list[Step]:
    """Train with `withheld` backwards that are added up before each one that is summed; return the timed steps."""
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
        (timed,) = seen
        assert [(gradient.size, gradient.ready_s) for gradient in timed.gradients] == [(24, 1.0), (48, 2.0)]
        assert (timed.forward_s, timed.backward_s, timed.element) == (1.0, 2.0, "float32")


def test_passes_that_are_not_summed_count_as_computing(pair: JobRanks) -> None:
    for seen in pair.run(observe, 2):
        assert [(timed.forward_s, timed.backward_s) for timed in seen] == [(3 * 1.0 + 2 * 2.0, 2.0)]
