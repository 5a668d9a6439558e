"""Kill ranks while they save, and read what a resume would find."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import ranks
import torch
import torch.distributed as dist
from ranks import FORK, checkpoint

from herringbone_contract.checkpoint.verification import listing, verify


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
    moments = random.Random(21)  # noqa: S311  moments, not secrets
    met = {"kills": count, "torn_reads": 0, "unfinished_saves": 0}
    for _ in range(count):
        port = ranks.free_port()
        receiver, sender = FORK.Pipe(duplex=False)
        savers = [FORK.Process(target=_save_for_ever, args=(folder, rank, port, sender)) for rank in range(2)]
        for process in savers:
            process.start()
        receiver.recv()
        time.sleep(moments.uniform(0.0, 0.1))
        # One rank first: the other one goes on for a moment, as on another host.
        for process in moments.sample(savers, 2):
            os.kill(process.pid or 0, signal.SIGKILL)
            time.sleep(moments.uniform(0.0, 0.002))
        for process in savers:
            process.join()
        met["unfinished_saves"] += any(entry.manifest is None for entry in listing(Path(folder)))
        path = checkpoint.find(Path(folder))
        values = checkpoint.read_plain(path)["model"]["weight"].unique()
        met["torn_reads"] += bool(verify(path)) or len(values) != 1
    return met
