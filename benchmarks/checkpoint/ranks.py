"""Ranks as processes of this machine that talk over gloo on the loopback interface, their model, and their clock."""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# The libraries themselves: the Python of accelerate has no installation of them.
sys.path[:0] = [str(ROOT / "contract"), str(ROOT / "parallel")]
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard  # noqa: E402

from herringbone_parallel.torch.checkpoint import api as checkpoint  # noqa: E402

FORK = multiprocessing.get_context("fork")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def network(width: int, layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width) for _ in range(layers)))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, width: int) -> None:
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def sharded(width: int, layers: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network(width, layers)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train_step(model, optimizer, width)
    return model, optimizer


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


class Taken(NamedTuple):
    """The seconds of a call on the slowest rank, and the processor's seconds of all ranks for it."""

    seconds: float
    processor: float


def measured(call: Callable[[], object]) -> Taken:
    """Time a call that all ranks begin together."""
    dist.barrier()
    begin, processor = time.perf_counter(), time.process_time()
    call()
    seconds, used = time.perf_counter() - begin, time.process_time() - processor
    slowest = torch.tensor(seconds, dtype=torch.float64)
    total = torch.tensor(used, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    dist.all_reduce(total)
    return Taken(float(slowest), float(total))


def in_turn(
    ways: Mapping[str, Callable[[], object]],
    rounds: int,
    after: Callable[[], object] = lambda: None,
) -> dict[str, list[Taken]]:
    """Measure each of the ways once in each round, and call `after` between them, which is not measured."""
    taken: dict[str, list[Taken]] = {name: [] for name in ways}
    for number in range(rounds):
        # Other work on the machine comes and goes: each way is at each place of a round.
        names = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        for name in names:
            taken[name].append(measured(ways[name]))
            after()
        say(f"round {number + 1} of {rounds}: " + ", ".join(f"{name} {taken[name][-1].seconds:.3f} s" for name in ways))
    return taken


def medians(taken: Mapping[str, list[Taken]]) -> dict[str, dict[str, float]]:
    """Return the medians of each way: its seconds, and the processor's seconds of all ranks."""
    return {
        name: {
            "seconds": round(statistics.median(one.seconds for one in each), 4),
            "processor": round(statistics.median(one.processor for one in each), 4),
        }
        for name, each in taken.items()
    }


def ratio(taken: Mapping[str, list[Taken]], name: str, other: str) -> dict[str, float]:
    """Return the medians of the rounds' ratios of two ways."""
    pairs = list(zip(taken[name], taken[other], strict=True))
    return {
        "seconds": round(statistics.median(one.seconds / two.seconds for one, two in pairs), 3),
        "processor": round(statistics.median(one.processor / two.processor for one, two in pairs), 3),
    }


def say(text: str) -> None:
    """Print a line of progress, on the first rank."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"  {text}", file=sys.stderr, flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rank(
    rank: int, size: int, port: int, connection: Any, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
        ACCELERATE_USE_FSDP="true", ACCELERATE_USE_CPU="true", FSDP_VERSION="2",
    )  # fmt: skip
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    result = function(*args)
    checkpoint.finalize()
    dist.barrier()
    connection.send(result)


def run(size: int, function: Callable[..., Any], *args: Any) -> Any:
    """Run a function on forked ranks, and return what the first rank returned."""
    port = free_port()
    receiver, sender = FORK.Pipe(duplex=False)
    others = [FORK.Pipe(duplex=False) for _ in range(size - 1)]
    pipes = [sender, *(other for _, other in others)]
    processes = [
        FORK.Process(target=_rank, args=(rank, size, port, pipes[rank], function, args)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    sender.close()
    result = receiver.recv()
    for process in processes:
        process.join()
    return result
