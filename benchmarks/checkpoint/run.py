"""Checkpoints: how long training stands still, how long a resume takes beside accelerate's, and kills while saving.

    .venv-huggingface/bin/python benchmarks/checkpoint/run.py            # tests/huggingface/setup makes this Python

The last line is JSON. Ranks are processes of this machine that talk over gloo on the loopback interface.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

from herringbone_contract.checkpoint.verification import listing, verify  # noqa: E402
from herringbone_parallel.torch.checkpoint import api as checkpoint  # noqa: E402

FORK = multiprocessing.get_context("fork")
STEP_SECONDS = 0.05


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


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call that all ranks begin together, until the last one is back."""
    return measured(call)[0]


def measured(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of a call, as `timed` does, and the processor's seconds of all ranks for it."""
    dist.barrier()
    begin, processor = time.perf_counter(), time.process_time()
    call()
    used = torch.tensor(time.process_time() - processor, dtype=torch.float64)
    dist.barrier()
    seconds = time.perf_counter() - begin
    dist.all_reduce(used)
    return seconds, float(used)


def medians(call: Callable[[], object], repeats: int) -> dict[str, float]:
    pairs = [measured(call) for _ in range(repeats)]
    return {
        "load": statistics.median(seconds for seconds, _ in pairs),
        "load_processor": statistics.median(used for _, used in pairs),
    }


def stall(folder: str, width: int, layers: int, repeats: int) -> dict[str, float]:
    """Return the seconds of a blocking save, and those for which a save in the background stops training."""
    model, optimizer = sharded(width, layers)
    state = state_of(model, optimizer)
    pending: list[checkpoint.PendingSave] = []

    def begin(tag: str) -> None:
        pending.append(checkpoint.async_save(folder, tag, state))

    # The first save in the background allocates the memory for the copies.
    first = timed(lambda: begin("first"))
    pending.pop().result()
    blocking, stalls, written = [], [], []
    for _ in range(repeats):
        blocking.append(timed(lambda: checkpoint.save(folder, "blocking", state)))
        stalls.append(timed(lambda: begin("background")))
        start = time.perf_counter()
        pending.pop().result()
        written.append(time.perf_counter() - start)
    size = checkpoint.Reader(Path(folder, "background")).manifest.bytes
    return {
        "bytes": size,
        "blocking": statistics.median(blocking),
        "stall": statistics.median(stalls),
        "first_stall": first,
        "background": statistics.median(written),
    }


def resume_ours(folder: str, width: int, layers: int, repeats: int) -> dict[str, float]:
    """Return the seconds of a save and of a load into a model and optimizer that are made already."""
    model, optimizer = sharded(width, layers)
    save = timed(lambda: checkpoint.save(folder, "a", state_of(model, optimizer)))
    before = [parameter.detach().to_local().clone() for parameter in model.parameters()]
    train_step(model, optimizer, width)

    def load() -> None:
        state = state_of(model, optimizer)
        # The tensors of the state are those of the model and the optimizer; options of groups are not.
        checkpoint.load(folder, state, "a")
        for group, saved in zip(optimizer.param_groups, state["optimizer"]["param_groups"], strict=True):
            group.update({key: value for key, value in saved.items() if key != "params"})

    result = {"save": save, **medians(load, repeats)}
    after = [parameter.detach().to_local() for parameter in model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    return result


def resume_accelerate(folder: str, width: int, layers: int, repeats: int, kind: str) -> dict[str, float]:
    """Return the same for `save_state` and `load_state` of accelerate, with its full or its sharded state."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        state_dict_type=kind,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        cpu_ram_efficient_loading=False,
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = network(width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = accelerator.prepare(model, optimizer)
    train_step(model, optimizer, width)
    save = timed(lambda: accelerator.save_state(folder))
    return {"save": save, **medians(lambda: accelerator.load_state(folder), repeats)}


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
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    receiver, sender = FORK.Pipe(duplex=False)
    others = [FORK.Pipe(duplex=False) for _ in range(size - 1)]
    pipes = [sender, *(other for _, other in others)]
    ranks = [FORK.Process(target=_rank, args=(rank, size, port, pipes[rank], function, args)) for rank in range(size)]
    for process in ranks:
        process.start()
    sender.close()
    result = receiver.recv()
    for process in ranks:
        process.join()
    return result


def _save_for_ever(folder: str, rank: int, port: int, connection: Any) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo"
    )
    dist.init_process_group("gloo")
    for step in range(1_000_000):
        half = torch.full((512, 256), float(step))
        state = {"model": {"weight": checkpoint.Piece(half, (512 * rank, 0), (1024, 256))}}
        write = checkpoint.async_save if step % 2 else checkpoint.save
        # Every other save replaces the one before under its tag.
        write(folder, f"step-{step // 2}", state)
        if step == 2 and rank == 0:
            connection.send("begun")


def kills(folder: str, count: int) -> dict[str, int]:
    """Kill the ranks at random moments, and read what a resume would find; return what was met."""
    import socket

    moments = random.Random(21)  # noqa: S311  moments, not secrets
    met = {"kills": count, "torn_reads": 0, "unfinished_saves": 0}
    for _ in range(count):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        receiver, sender = FORK.Pipe(duplex=False)
        ranks = [FORK.Process(target=_save_for_ever, args=(folder, rank, port, sender)) for rank in range(2)]
        for process in ranks:
            process.start()
        receiver.recv()
        time.sleep(moments.uniform(0.0, 0.1))
        # One rank first: the other one goes on for a moment, as on another host.
        for process in moments.sample(ranks, 2):
            os.kill(process.pid or 0, signal.SIGKILL)
            time.sleep(moments.uniform(0.0, 0.002))
        for process in ranks:
            process.join()
        met["unfinished_saves"] += any(entry.manifest is None for entry in listing(Path(folder)))
        path = checkpoint.find(Path(folder))
        values = checkpoint.read_plain(path)["model"]["weight"].unique()
        met["torn_reads"] += bool(verify(path)) or len(values) != 1
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=16, help="ranks that resume")
    parser.add_argument("--savers", type=int, default=4, help="ranks that save beside training")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--parts", default="stall,resume,kills")
    arguments = parser.parse_args()
    shape = (arguments.width, arguments.layers, arguments.repeats)
    results: dict[str, Any] = {}

    def folder(name: str) -> str:
        return str(Path(top, name))

    with tempfile.TemporaryDirectory() as top:
        if "stall" in arguments.parts:
            results["stall"] = run(arguments.savers, stall, folder("stall"), *shape)
            results["stall_over_blocking"] = results["stall"]["stall"] / results["stall"]["blocking"]
            print(json.dumps(results["stall"]), flush=True)
        if "resume" in arguments.parts:
            import accelerate  # noqa: F401  imported once, before the ranks are forked

            for name, function, *kind in (
                ("ours", resume_ours),
                ("accelerate_full", resume_accelerate, "FULL_STATE_DICT"),
                ("accelerate_sharded", resume_accelerate, "SHARDED_STATE_DICT"),
            ):
                results[name] = run(arguments.ranks, function, folder(name), *shape, *kind)
                print(name, json.dumps(results[name]), flush=True)
            ours, full = results["ours"], results["accelerate_full"]
            results["load_over_accelerate_full"] = ours["load"] / full["load"]
            results["processor_over_accelerate_full"] = ours["load_processor"] / full["load_processor"]
        if "kills" in arguments.parts:
            results["kills"] = kills(folder("kills"), arguments.kills)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
