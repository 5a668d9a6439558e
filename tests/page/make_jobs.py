"""Make jobs that look like real ones in a home: rows, logs, events and files, without running anything.

Tests, screenshots and benchmarks use them.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from herringbone.records.home import Home, JobFolder
from herringbone.records.index import JobIndex, JobRecord
from herringbone.system.processes import identity
from herringbone_contract.events.format import Event, Point, batches, encode
from herringbone_contract.failure import Failure, Frame

GB = 1_000_000_000


def make_job(home: Home, name: str, *, ranks: int = 2, hosts: int = 1, **columns: Any) -> JobFolder:
    """Add a row, and an empty folder of logs; `columns` are those of the row."""
    home.make()
    folder = home.job(name)
    folder.logs.mkdir(parents=True)
    for host in range(1, hosts + 1):
        (folder.host(f"algo-{host}") / "model").mkdir(parents=True)
    values = {
        "backend": "local_process",
        "created": 1_800_000_000.0,
        "status": "InProgress",
        "secondary_status": "Training",
    }
    if "status" not in columns:
        # This process stands in for the controller: a job without a living one is marked as lost.
        values["controller"] = str(identity(os.getpid()))
    plan = json.dumps(
        _plan(name, ranks, hosts, columns.pop("hyperparameters", None) or {"lr": "0.003", "batch_size": "64"})
    )
    JobIndex(home.index).add(JobRecord(name=name, plan=plan, hosts=hosts, **{**values, **columns}))
    return folder


def _plan(name: str, ranks: int, hosts: int, hyperparameters: dict[str, str]) -> dict[str, Any]:
    return {
        "job_name": name,
        "backend": "local_process",
        "launcher": "torch_distributed",
        "estimator": "PyTorch",
        "hosts": [
            {
                "name": f"algo-{host}",
                "instance_type": "local_process",
                "ranks": ranks // hosts,
                "group": "homogeneousCluster",
                "helper": False,
            }
            for host in range(1, hosts + 1)
        ],
        "channels": [{"name": "training", "path": "/data/cats", "input": {"s3_data": "/data/cats"}}],
        "options": {"max_run": 86400},
        "arguments": {},
        "hyperparameters": hyperparameters,
        "source": {"entry_point": "train.py", "folder": "/work/cats/src", "dependencies": []},
        "warnings": [],
        "unused": [],
        "folder": "/work/cats",
    }


def write_events(folder: JobFolder, host: str | None, events: Iterable[Event]) -> None:
    """Append events to a host's file, or to the job's."""
    path = folder.job_events if host is None else folder.events(host)
    with path.open("ab") as file:
        for event in events:
            file.write(encode(event if host is None else {**event, "host": host}))


def write_log(folder: JobFolder, host: str, lines: Iterable[tuple[float, int | None, str]]) -> None:
    """Append lines (time, rank, text) to a host's log."""
    with folder.log(host).open("ab") as file:
        for time, rank, text in lines:
            stamp = datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            place = host if rank is None else f"{host}:{rank}"
            file.write(f"{stamp} [{place}] {text}\n".encode())


def loss_at(step: float, total: float, noise: random.Random, rank: int = 0) -> float:
    """Return a loss that falls as losses do."""
    return 0.18 + 2.3 * math.exp(-5.5 * step / total) + 0.02 * rank + noise.gauss(0, 0.03) * (1.2 - step / total)


def training(
    begin: float, seconds: int, *, steps: int, ranks: int, gpus: int, total: int = 0, seed: int = 0
) -> Iterator[Event]:
    """Yield the events of one host that has done `steps` of `total` steps, a second at a time."""
    noise = random.Random(seed)
    per_second, whole = steps / seconds, total or steps
    for second in range(seconds):
        time = begin + second + 1
        first, last = round(second * per_second), round((second + 1) * per_second)
        for rank in range(ranks):
            points = [
                Point(
                    time - 1 + (step - first + 1) / max(1, last - first),
                    "loss",
                    loss_at(step, whole, noise, rank),
                    step,
                    rank,
                )
                for step in range(first, last)
            ]
            yield from batches(points)
            if last > first:
                slow = 1.35 if rank == 3 and second > seconds * 0.6 else 1.0
                took = [slow * abs(noise.gauss(1, 0.04)) / per_second for _ in range(first, last)]
                yield {"kind": "steps", "t": time, "rank": rank, "count": last, "since": time - 1, "seconds": took}
        rate = 0.003 * 0.5 * (1 + math.cos(math.pi * last / whole))
        yield from batches(
            [
                Point(time, "learning_rate", rate, last, 0),
                Point(time, "grad_norm", abs(noise.gauss(1.1, 0.25)) * (1.4 - last / whole), last, 0),
            ]
        )
        if second % 30 == 29:
            accuracy = 0.95 - 0.75 * math.exp(-4.5 * last / whole) + noise.gauss(0, 0.006)
            yield from batches(
                [
                    Point(time, "eval_accuracy", accuracy, last, 0),
                    Point(time, "eval_loss", loss_at(last, whole, noise) + 0.06, last, 0),
                ]
            )
        yield {
            "kind": "progress",
            "t": time,
            "rank": 0,
            "done": last,
            "total": whole,
            "unit": "step",
            "eta": (whole - last) / per_second,
        }
        yield _sample(time, second, ranks, gpus, noise)


def _sample(time: float, second: int, ranks: int, gpus: int, noise: random.Random) -> Event:
    busy = 0.05 if second % 97 < 4 else 1.0
    return {
        "kind": "sample",
        "t": time,
        "seconds": 1.0,
        "cpu": ranks * 1.1 * busy + abs(noise.gauss(0, 0.15)),
        "memory": 9 * GB + min(second, 200) * 0.01 * GB,
        "memory_total": 64 * GB,
        "disk_read": abs(noise.gauss(90e6, 25e6)) * busy,
        "disk_write": 400e6 if second % 97 in (1, 2) else abs(noise.gauss(1e6, 1e6)),
        "net_in": abs(noise.gauss(110e6, 12e6)) * busy,
        "net_out": abs(noise.gauss(108e6, 12e6)) * busy,
        "gpus": [
            {
                "index": index,
                "name": "NVIDIA H100",
                "use": max(0.0, min(1.0, noise.gauss(0.93, 0.03))) * busy,
                "memory": (61 + index) * GB,
                "memory_total": 80 * GB,
                "watts": 90 + 540 * busy + noise.gauss(0, 20),
                "celsius": 58 + 6 * busy + index,
            }
            for index in range(gpus)
        ],
        "ranks": {
            str(rank): {"cpu": 1.1 * busy + noise.gauss(0, 0.05), "memory": 2 * GB + rank * 0.1 * GB, "state": "R"}
            for rank in range(ranks)
        },
    }


def pipeline(
    step: int, partitions: int = 4, microbatches: int = 8, *, noise: random.Random | None = None, forward: float = 0.02
) -> list[list[Any]]:
    """Return the spans of one pipeline step in which each partition computes forwards and backwards in turn."""
    ready: dict[tuple[str, int, int], float] = {}
    free = [0.0] * partitions
    spans: list[list[Any]] = []
    order = [_one_f_one_b(partition, partitions, microbatches) for partition in range(partitions)]
    while any(order):
        for partition in range(partitions):
            if not order[partition]:
                continue
            what, microbatch = order[partition][0]
            before = (
                ("forward", microbatch, partition - 1) if what == "forward" else ("backward", microbatch, partition + 1)
            )
            edge = partition == 0 if what == "forward" else partition == partitions - 1
            if not edge and before not in ready:
                continue
            order[partition].pop(0)
            begin = max(free[partition], 0.0 if edge else ready[before])
            took = forward * (1 if what == "forward" else 2) * (1 + abs(noise.gauss(0, 0.09)) if noise else 1)
            free[partition] = ready[what, microbatch, partition] = begin + took
            spans.append([what, microbatch, partition, round(begin, 5), round(begin + took, 5)])
    return spans


def _one_f_one_b(partition: int, partitions: int, microbatches: int) -> list[tuple[str, int]]:
    warm = min(partitions - partition - 1, microbatches)
    order = [("forward", at) for at in range(warm)]
    for at in range(microbatches - warm):
        order += [("forward", warm + at), ("backward", at)]
    return order + [("backward", at) for at in range(microbatches - warm, microbatches)]


FAILURE = Failure(
    host="algo-1",
    rank=1,
    exit_code=1,
    exception="ModuleNotFoundError",
    message="No module named 'einops'",
    frames=(Frame("train.py", 12, "<module>", "from einops import rearrange"),),
    log_tail=(
        "Traceback (most recent call last):",
        '  File "train.py", line 12, in <module>',
        "ModuleNotFoundError: No module named 'einops'",
    ),
)


def show_case(home: Home, now: float) -> None:
    """Make the jobs of the documentation's pictures: one that runs, one that failed, and some before them."""
    noise = random.Random(7)
    begin = now - 600
    folder = make_job(
        home,
        "cats-resnet-4gpu",
        ranks=4,
        created=begin - 6,
        started=begin,
        hyperparameters={"lr": "0.003", "batch_size": "256", "epochs": "30"},
    )
    write_events(
        folder,
        None,
        [
            {"kind": "state", "t": begin - 6, "state": "Starting"},
            {"kind": "state", "t": begin, "state": "Training"},
            {
                "kind": "restart",
                "t": begin + 121,
                "attempt": 2,
                "why": "algo-1 lost its network; goes on from checkpoint step-1200",
            },
        ],
    )
    write_events(folder, "algo-1", training(begin, 600, steps=6000, total=9500, ranks=4, gpus=4))
    write_events(
        folder,
        "algo-1",
        [
            *(
                {"kind": "checkpoint", "t": begin + at, "path": f"checkpoints/step-{at * 10}", "bytes": 1_240_000_000}
                for at in range(120, 600, 120)
            ),
            {"kind": "straggler", "t": begin + 540, "rank": 3, "seconds": 0.135, "median": 0.1, "steps": 20},
            {
                "kind": "timeline",
                "t": begin + 590,
                "step": 5900,
                "spans": pipeline(0, noise=noise),
                "predicted": {"spans": pipeline(0)},
            },
        ],
    )
    lines: list[tuple[float, int | None, str]] = [(begin, None, "4 ranks, torchrun's layout")]
    lines += [
        (begin + at / 10, rank, f"step={at} loss={loss_at(at, 6000, noise, rank):.4f} lr=0.0030")
        for at in range(0, 6000, 20)
        for rank in range(4)
    ]
    write_log(folder, "algo-1", lines)
    (folder.host("algo-1") / "checkpoints").mkdir()
    (folder.host("algo-1") / "checkpoints" / "step-4800.pt").write_bytes(b"x" * 5000)
    _make_failed(home, now)
    _make_trials(home, now, noise)


def _make_failed(home: Home, now: float) -> None:
    failed = make_job(
        home,
        "cats-resnet-einops",
        created=now - 4000,
        started=now - 3990,
        ended=now - 3975,
        status="Failed",
        secondary_status="Failed",
        failure=FAILURE.to_json(),
    )
    write_log(failed, "algo-1", [(now - 3980, 1, line) for line in FAILURE.log_tail])
    write_events(
        failed,
        None,
        [
            {"kind": "state", "t": now - 3990, "state": "Training"},
            {"kind": "state", "t": now - 3975, "state": "Failed", "why": FAILURE.head},
        ],
    )


def _make_trials(home: Home, now: float, noise: random.Random) -> None:
    for number, rate in enumerate((0.001, 0.01, 0.03)):
        at = now - 20_000 - 7000 * number
        done = make_job(
            home,
            f"cats-resnet-lr{rate}",
            ranks=2,
            created=at,
            started=at + 3,
            ended=at + 303,
            status="Completed",
            secondary_status="Completed",
            hyperparameters={"lr": str(rate), "batch_size": "64"},
        )
        speed = 3000 * (0.8, 1.0, 1.7)[number]
        points = [
            Point(at + 3 + step / 10, "loss", loss_at(step, speed, noise) + (0, 0.06, -0.04)[number], step, 0)
            for step in range(0, 3000, 5)
        ]
        points += [
            Point(
                at + 3 + step / 10, "eval_accuracy", 0.93 - 0.7 * math.exp(-4 * step / speed) - 0.02 * number, step, 0
            )
            for step in range(0, 3000, 150)
        ]
        write_events(done, "algo-1", batches(points))
        write_events(
            done, None, [{"kind": "progress", "t": at + 302, "done": 3000, "total": 3000, "unit": "step", "eta": 0.0}]
        )


def make_many(home: Home, count: int, now: float) -> None:
    """Make jobs that are over, each with some seconds of events."""
    for number in range(count):
        at = now - 1000 - 100 * number
        folder = make_job(
            home,
            f"sweep-{number:03}",
            created=at,
            started=at + 2,
            ended=at + 14,
            status="Completed",
            secondary_status="Completed",
        )
        write_events(folder, "algo-1", training(at + 2, 12, steps=120, ranks=1, gpus=1, seed=number))


def make_long(home: Home, points: int, now: float, *, per_event: int = 100) -> Path:
    """Make a job with so many points of one metric, `per_event` in each event; return its file of events."""
    folder = make_job(
        home,
        f"long-{per_event}",
        created=now - points,
        started=now - points,
        ended=now,
        status="Completed",
        secondary_status="Completed",
    )
    noise = random.Random(3)
    wobble = [noise.gauss(0, 0.03) for _ in range(per_event)]
    with folder.events("algo-1").open("wb") as file:
        for begin in range(0, points, per_event):
            level = loss_at(begin, points, noise)
            values = [level + value for value in wobble[: points - begin]]
            event = {
                "kind": "metrics",
                "t": now - points + begin + len(values),
                "host": "algo-1",
                "rank": 0,
                "name": "loss",
                "source": "script",
                "since": now - points + begin,
                "step": begin,
                "by": 1,
                "values": values,
            }
            file.write(encode(event))
    return folder.events("algo-1")
