"""If a rank dies or stops, every other rank raises an error that names it within seconds, and none hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from herringbone_parallel.torch.data_parallel.api import install
from tests.parallel.torch.data_parallel.ranks import JobRanks
from tests.waiting import wait_until


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[JobRanks]:
    ranks = JobRanks(3, tmp_path)
    yield ranks
    ranks.close()


def train_until(ready: Path, what: str) -> tuple[str, str]:
    """Train until another rank is lost; return the type and the text of this rank's error."""
    install()
    dist.init_process_group("smddp")
    rank = dist.get_rank()
    batchnorm = [nn.BatchNorm1d(8)] if what == "buffers" else []
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), *batchnorm, nn.Linear(8, 1)))
    for _ in range(2):
        model(torch.ones(4, 8)).sum().backward()
    if rank == 1:
        (ready / str(os.getpid())).touch()
        time.sleep(60)
    try:
        for _ in range(3):
            dist.all_reduce(torch.ones(9)) if what == "sums" else model(torch.ones(4, 8)).sum().backward()
    except Exception as error:  # noqa: BLE001  it is what the test is about
        return type(error).__name__, str(error)
    return "nothing", ""


# torch's C++ code raises only RuntimeError in a backward. The first rank of a broadcast does not wait in it.
@pytest.mark.parametrize(
    ("how", "what", "kinds"),
    [
        (signal.SIGKILL, "gradients", {"RuntimeError"}),
        (signal.SIGKILL, "sums", {"RuntimeError"}),
        (signal.SIGSTOP, "buffers", {"RuntimeError", "ParallelError"}),
    ],
    ids=["killed", "killed, in a sum", "stopped"],
)
def test_a_lost_rank_is_named_by_every_other(
    trio: JobRanks, tmp_path: Path, how: signal.Signals, what: str, kinds: set[str]
) -> None:
    ready = tmp_path / "ready"
    ready.mkdir()
    trio.start(train_until, ready, what)
    wait_until(lambda: any(ready.iterdir()), 60)
    victim = next(ready.iterdir()).name
    time.sleep(0.5)  # the others wait for it by then
    os.kill(int(victim), how)
    lost = time.monotonic()
    answers = [trio.answer(rank, 20) for rank in (0, 2)]
    assert time.monotonic() - lost < 10  # 5 s on a machine with nothing else to do
    assert [well for well, _ in answers] == [True, True]
    assert {name for _, (name, _) in answers} == kinds
    assert all("rank 1" in text for _, (_, text) in answers)
    assert [trio.ended(rank) for rank in (0, 2)] == [0, 0]  # gloo's destructor would wait for half an hour
