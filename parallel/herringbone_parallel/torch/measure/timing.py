"""Time the operations of a measured step on this machine's device, as several ranks would run them at once.

    python -m herringbone_parallel.torch.measure.timing MEASUREMENT --output TIMINGS --processes 2 --threads 1

Each process times all operations, so the processes contend for caches and memory as ranks do. No more processes run
than the cores have room for: more ranks than that take turns, which is the predictor's business. A process that an
operation kills is started again without the operation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec

from herringbone_contract.errors import ParallelError
from herringbone_contract.prediction.devices import Link
from herringbone_parallel.core.prediction.measurement import Added, PipelineWork, Timings, parse, to_text

_MODULE = "herringbone_parallel.torch.measure.timing"
# Operations that may kill a process before the timing gives up.
_CRASHES = 5
# Besides the budget: starting Python and torch on a busy machine, and the probes.
_START_SECONDS = 240.0
# On a machine that other programs use, processor time passes more slowly than the clock.
_BUSY = 10
_POLL_SECONDS = 0.05
# The free memory that is supposed where the system does not tell it.
_FREE_BYTES = 4 << 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Time the operations of the measurement that the arguments name; return the exit code."""
    options = _options(arguments)
    if options.worker is not None:
        _work(options)
        return 0
    try:
        # A wrong file is refused here, before any process starts.
        parse(options.measurement.read_bytes())
        timings = time_operations(
            options.measurement, processes=options.processes, threads=options.threads, budget_s=options.budget
        )
        options.output.write_bytes(to_text(timings))
    except (ParallelError, OSError) as error:
        print(f"timing: {error}", file=sys.stderr)
        return 2
    return 0


def time_operations(path: Path, *, processes: int, threads: int, budget_s: float) -> Timings:
    """Return the seconds of the operations of the measurement in `path`, in so many processes at once.

    Raises `ParallelError` if no operation could be timed.
    """
    cores = _cores()
    together = max(1, min(processes, cores // (threads or cores)))
    skipped: list[int] = []
    for _ in range(_CRASHES):
        with tempfile.TemporaryDirectory() as folder:
            results, killer = _run(path, Path(folder), together, threads, budget_s, skipped)
        if killer is None:
            break
        skipped.append(killer)
    else:
        raise ParallelError(
            f"operations {skipped} of the measurement kill a process that calls them: leave timings out"
        )
    seconds = _medians([result["seconds"] for result in results])
    if not seconds:
        raise ParallelError(f"{path}: no operation of this measurement can be called again. Measure the script again")
    dispatch = _medians([result["dispatch"] for result in results])
    links: dict[str, list[dict[str, float]]] = {}
    for result in results:
        for name, link in result["collectives"].items():
            links.setdefault(name, []).append(link)
    return Timings(
        device=results[0]["device"],
        processes=together,
        threads=results[0]["threads"],
        slowdown=max(result["slowdown"] for result in results),
        seconds={int(index): value for index, value in seconds.items()},
        start_seconds=min(seconds.values()),
        dispatch_seconds=dispatch,
        added=_added([result["added"] for result in results]),
        elapsed=_added([result["elapsed"] for result in results]),
        pipeline=_pipeline([result["pipeline"] for result in results]),
        copied_bytes_per_second=median(result["copied"] for result in results),
        collectives={
            name: Link(
                latency_s=median(link["latency_s"] for link in all_links),
                bytes_per_second=median(link["bytes_per_second"] for link in all_links),
            )
            for name, all_links in links.items()
        },
    )


def _run(
    path: Path, folder: Path, processes: int, threads: int, budget_s: float, skipped: Sequence[int]
) -> tuple[list[dict[str, Any]], int | None]:
    """Return the results of all processes; or the operation that killed one of them."""
    command = [sys.executable, "-m", _MODULE, str(path), "--processes", str(processes), "--threads", str(threads)]
    command += ["--budget", str(budget_s), "--skip", ",".join(map(str, skipped)), "--output", str(folder)]
    # As in a job, where torch makes threads by this variable.
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    limit = _START_SECONDS + _BUSY * budget_s
    end = time.monotonic() + limit
    workers = [subprocess.Popen([*command, "--worker", str(rank)], env=environment) for rank in range(processes)]
    try:
        # The others may wait for messages of a process that has failed.
        while None in (codes := [worker.poll() for worker in workers]) and not any(codes):
            if time.monotonic() > end:
                raise ParallelError(f"timing took longer than {limit:.0f} s. Give it a larger --budget")
            time.sleep(_POLL_SECONDS)
        failed = [rank for rank, code in enumerate(codes) if code]
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
    if not failed:
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)], None
    note = folder / f"{failed[0]}.note"
    if workers[failed[0]].returncode > 0 or not note.exists():
        raise ParallelError(f"a process that times operations failed with exit code {workers[failed[0]].returncode}")
    return [], int(note.read_text())


def _work(options: argparse.Namespace) -> None:
    """Time the operations in this process, one of several, and write the result into the folder `output`."""
    import torch
    import torch.distributed as dist

    from herringbone_parallel.torch.measure.libraries import added
    from herringbone_parallel.torch.measure.pipeline_work import RANKS, pipeline_work
    from herringbone_parallel.torch.measure.probes import collectives, copied_bytes_per_second, dispatch_seconds
    from herringbone_parallel.torch.measure.replay import Replay

    threads = torch.get_num_threads()
    measurement = parse(options.measurement.read_bytes())
    on_gpu = measurement.device.startswith("cuda") and torch.cuda.is_available()
    device = torch.device("cuda") if on_gpu else torch.device("cpu")
    note = options.output / f"{options.worker}.note"

    @torch.no_grad()
    def replayed() -> tuple[dict[int, float], float]:
        replay = Replay(
            measurement,
            device,
            threads=threads,
            held_bytes=_free_bytes() // (3 * options.processes),
            skipped=options.skip,
            note=lambda operation: note.write_text(str(operation)),
        )
        return replay.run(options.budget), replay.slowdown

    # As in the run: microbatches have threads of their own, in which fresh memory takes longer.
    with ThreadPoolExecutor(1) as pool:
        seconds, slowdown = pool.submit(replayed).result() if measurement.microbatches > 1 else replayed()
    links: dict[str, Link] = {}
    libraries: tuple[dict[str, Added], dict[str, Added]] = {}, {}
    pipeline: PipelineWork | None = None
    if options.processes > 1 and not on_gpu:
        store = f"file://{options.output / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=options.worker, world_size=options.processes)
        links = collectives()
        # The script itself decides for this library, so it shards nothing.
        libraries = added(shard=measurement.wrapper != "DistributedDataParallel")
        dist.destroy_process_group()
        if options.worker < RANKS:
            pipeline = pipeline_work(options.worker, options.output)
    result = {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "threads": threads,
        "seconds": seconds,
        "slowdown": slowdown,
        "dispatch": {} if on_gpu else dispatch_seconds(),
        "copied": copied_bytes_per_second(),
        "added": libraries[0],
        "elapsed": libraries[1],
        "pipeline": pipeline,
        "collectives": {
            name: {"latency_s": link.latency_s, "bytes_per_second": link.bytes_per_second}
            for name, link in links.items()
        },
    }
    (options.output / f"{options.worker}.json").write_bytes(msgspec.json.encode(result))


def _added(dicts: Sequence[dict[str, list[float]]]) -> dict[str, Added]:
    """Return the medians of what libraries add, over all processes."""
    return {name: Added(*map(median, zip(*(one[name] for one in dicts), strict=True))) for name in dicts[0]}


def _pipeline(works: Sequence[list[float] | None]) -> PipelineWork | None:
    """Return the means of the two ranks that had a pipeline, None if there was none."""
    both = [work for work in works if work is not None]
    return PipelineWork(*map(mean, zip(*both, strict=True))) if both else None


def _medians(dicts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each entry over all dicts.

    >>> _medians([{"a": 1.0}, {"a": 3.0, "b": 4.0}])
    {'a': 2.0, 'b': 4.0}
    """
    names = dict.fromkeys(name for entries in dicts for name in entries)
    return {name: median(entries[name] for entries in dicts if name in entries) for name in names}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_bytes() -> int:
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        # macOS.
        return _FREE_BYTES
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description="Time the operations of a measured step.")
    parser.add_argument("measurement", type=Path, help="file of `herringbone_parallel.torch.measure`")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    parser.add_argument("--processes", type=int, default=1, help="ranks that run on this machine at once")
    parser.add_argument("--threads", type=int, default=1, help="threads of each rank (0: torch's number)")
    parser.add_argument(
        "--budget", type=float, default=20.0, metavar="S", help="processor seconds of each process for operations"
    )
    # Of the processes that this program starts.
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--skip", default=[], type=_numbers, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.processes < 1 or options.threads < 0 or options.budget <= 0:
        parser.error("--processes is at least 1, --threads is not below 0, --budget is above 0")
    return options


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


if __name__ == "__main__":
    raise SystemExit(main())
