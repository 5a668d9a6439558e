"""Time whole steps of a script on this machine's cores, as several ranks would take them at once.

    python -m herringbone_parallel.torch.measure --time QUESTION --threads 1 --output TIMINGS SCRIPT ...

QUESTION is the predictor's: a measured step, hosts, a layout. The script computes for real, for a few steps:

    [1] alone       as many processes as the job has ranks, but no more than the cores and the memory have room for.
                    Each of them trains the whole model by itself. They contend for caches and memory as ranks do
    [2] together    with --job the ranks of the job itself, with their messages, if this machine can hold them

[1] is divided into modules, for all other layouts. Processes are forked, and begin to be timed at the same moment.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from herringbone_contract.constants import RankVariable
from herringbone_contract.errors import DistributionError, ParallelError
from herringbone_contract.prediction.question import QUIET_SLOWDOWN, Hosts, Question
from herringbone_parallel.core.prediction.layout import Layout, Library
from herringbone_parallel.core.prediction.measurement import Job, Measurement, Timings, parse
from herringbone_parallel.core.prediction.memory import MemoryModel
from herringbone_parallel.core.prediction.predict import held_bytes, layout_on
from herringbone_parallel.torch.measure import script
from herringbone_parallel.torch.measure.clock import Clock, Part
from herringbone_parallel.torch.measure.environment import is_version_1
from herringbone_parallel.torch.measure.probes import collectives, copied_bytes_per_second
from herringbone_parallel.torch.measure.result import Facts, names_of
from herringbone_parallel.torch.measure.stand_ins.files import scratch
from herringbone_parallel.torch.measure.stand_ins.groups import alone
from herringbone_parallel.torch.measure.stand_ins.pipeline import whole_model
from herringbone_parallel.torch.measure.stand_ins.switches import uncompiled
from herringbone_parallel.torch.measure.stand_ins.wrappers import unsplit

# The first steps make states, buffers and buckets.
_WARM_UP = 2
_MOST_STEPS = 40
# The part of the free memory that processes may take.
_ROOM = 0.9
_LOOPBACK = "127.0.0.1"
# Ranks that take turns on a core say as much about more of them.
_RANKS_PER_CORE = 4
# The free memory that is supposed where the system does not tell it.
_FREE_BYTES = 4 << 30

# Makes this process rank 0 of so many ranks that hold the whole model; 0 for the job's own environment.
Enter = Callable[[int], None]


class Line:
    """A child's line to the parent, over which the processes agree on the number of steps."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._steps: int | None = None

    def agreed(self, step_s: float) -> int:
        """Wait until all processes are here; return the number of steps to take, which last `step_s` here."""
        if self._steps is None:
            self.tell(step_s)
            self._steps = int(self._heard())
        return self._steps

    def tell(self, result: object) -> None:
        """Send a result."""
        with _living_parent():
            self._connection.send_bytes(json.dumps(result).encode())

    def end(self, result: object) -> None:
        """Send the last result, and wait for the parent to end this process: others may still need its messages."""
        self.tell(result)
        self._heard()

    def _heard(self) -> bytes:
        with _living_parent():
            return self._connection.recv_bytes()


@contextmanager
def _living_parent() -> Iterator[None]:
    """End this process with a parent that the script has ended, or replaced by a program."""
    try:
        yield
    except (EOFError, ConnectionError):
        os._exit(1)


Work = Callable[[int, Line], object]


def time_script(options: argparse.Namespace, enter: Enter, free_bytes: Callable[[], int] | None = None) -> Timings:
    """Return the seconds of the script's steps. Raises `ParallelError` if the script cannot be timed here."""
    question = msgspec.json.decode(options.time.read_bytes(), type=Question)
    measurement = parse(Path(question.measurement).read_bytes())
    hosts, threads, budget_s = question.hosts, options.threads, options.budget
    ranks, cores = hosts.count * hosts.ranks_per_host, _cores()
    memory = MemoryModel(measurement)
    room = int(_ROOM * (free_bytes or _free_bytes)()) // max(1, memory.memory(Layout())[0].peak)
    if not room:
        raise ParallelError("a step of the whole model needs more memory than this machine has left")
    processes = max(1, min(ranks, cores // (threads or cores), room))
    wholes = run_together(processes, lambda _, line: _time_whole(options, enter, measurement, line), budget_s)
    port = _free_port()
    links = run_together(processes, lambda rank, line: _time_messages(rank, processes, port, line), budget_s)
    slowdown = max(whole["slowdown"] for whole in wholes)
    job = None
    if options.job and ranks > 1:
        # Layouts that the script or this machine cannot run are refused or estimated by the predictor.
        with suppress(ParallelError, DistributionError):
            layout = layout_on(hosts, question.distribution, measurement)
            if _runs_here(layout, hosts, memory):
                port = _free_port()
                turns = turns_of(ranks, lambda rank, line: _time_job(options, enter, rank, hosts, port, line), budget_s)
                # On a busy machine as much less as for whole steps, but not less than the cores need.
                waited = slowdown if slowdown > QUIET_SLOWDOWN else 1.0
                elapsed_s = median(max(elapsed for elapsed, _ in turn) for turn in turns)
                work_s = median(sum(work for _, work in turn) for turn in turns)
                seconds = max(elapsed_s / waited, work_s / min(ranks, cores))
                job = Job(distribution=question.distribution, ranks=ranks, seconds=seconds)
    return Timings(
        device="cpu",
        processes=processes,
        threads=wholes[0]["threads"],
        slowdown=slowdown,
        forward_s=median(whole["forward_s"] for whole in wholes),
        backward_s=median(whole["backward_s"] for whole in wholes),
        optimizer_s=median(whole["optimizer_s"] for whole in wholes),
        modules=wholes[0]["modules"],
        copied_bytes_per_second=links[0]["copied"],
        collectives=links[0]["collectives"],
        job=job,
    )


@contextmanager
def started(count: int, work: Work) -> Iterator[tuple[list[Connection], list[BaseProcess]]]:
    """Start so many processes for the length of the `with` block."""
    context = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    processes: list[BaseProcess] = []
    sys.stdout.flush()
    try:
        for rank in range(count):
            own, childs = context.Pipe()
            pipes.append(own)
            processes.append(context.Process(target=_child, args=(work, rank, Line(childs), tuple(pipes))))
            processes[-1].start()
            childs.close()
        yield pipes, processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def run_together(count: int, work: Work, budget_s: float) -> list[Any]:
    """Return the results of so many processes that take equally many steps at the same time.

    Raises `ParallelError` if one of them ends without a result.
    """
    with started(count, work) as (pipes, processes):
        slowest_s = max(_received(pipe, processes) for pipe in pipes)
        steps = max(1, min(_MOST_STEPS, int(budget_s / slowest_s))) if slowest_s else 1
        for pipe in pipes:
            pipe.send_bytes(str(steps).encode())
        return [_received(pipe, processes) for pipe in pipes]


def turns_of(ranks: int, work: Work, budget_s: float) -> list[list[tuple[float, float]]]:
    """Return for each timed step of a job what each rank says of it.

    The ranks go on until the parent has seen enough: one that stopped might owe another one messages.
    """
    turns: list[list[tuple[float, float]]] = []
    with started(ranks, work) as (pipes, processes):
        while len(turns) < _WARM_UP + _MOST_STEPS:
            turn = [_received(pipe, processes) for pipe in pipes]
            if None in turn:
                # A script with few steps has ended.
                break
            turns.append(turn)
            if sum(max(elapsed_s for elapsed_s, _ in turn) for turn in turns[_WARM_UP:]) >= budget_s:
                break
    if not turns:
        raise ParallelError("the script ended before a step of an optimizer returned")
    return turns[_WARM_UP:] or turns[-1:]


def _received(pipe: Connection, processes: list[BaseProcess]) -> Any:
    """Return what a process sends. Raises `ParallelError` if any fails, because the others may wait for it."""
    while pipe not in wait([pipe, *(process.sentinel for process in processes if process.exitcode is None)]):
        if failed := [process.exitcode for process in processes if process.exitcode]:
            raise ParallelError(f"a process that times the script ended with exit code {failed[0]}")
    try:
        return json.loads(pipe.recv_bytes())
    except (EOFError, ConnectionError) as error:
        raise ParallelError("a process that times the script ended without a result") from error


def _child(work: Work, rank: int, line: Line, others: Iterable[Connection]) -> None:
    """Do the work of a process, and end it without Python's shutdown, at which the script's libraries would wait.

    `others` are the parent's ends: with a copy of its own, this process would wait for a parent that is gone.
    """
    for pipe in others:
        pipe.close()
    try:
        line.end(work(rank, line))
    except BaseException:  # noqa: BLE001  the user's script may raise anything
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _run(options: argparse.Namespace, clock: Clock, *stand_ins: AbstractContextManager[None]) -> None:
    """Run the script while a clock watches it, until one of its steps raises `Measured`, or it ends."""
    with ExitStack() as stack:
        for stand_in in (scratch(), uncompiled(), *stand_ins, suppress(script.Measured, SystemExit), clock.watching()):
            stack.enter_context(stand_in)
        script.run(options.script, options.arguments)


def _time_whole(options: argparse.Namespace, enter: Enter, measurement: Measurement, line: Line) -> dict[str, Any]:
    """Time steps of the whole model in this process, without messages."""
    enter(measurement.ranks)
    if options.threads:
        torch.set_num_threads(options.threads)
    threads = torch.get_num_threads()
    facts = Facts(ranks=measurement.ranks, tree=measurement.tree)
    stand_ins = [alone(measurement.ranks), unsplit(facts)]
    if is_version_1(os.environ):
        stand_ins.append(whole_model(None, facts))
    # One thread's own time: what other programs of the machine take is not counted.
    now = process_time if threads == 1 else perf_counter

    def on_step() -> None:
        taken = len(clock.steps)
        if taken >= _WARM_UP and taken >= _WARM_UP + line.agreed(clock.steps[-1].elapsed_s):
            raise script.Measured

    clock = Clock(on_step, now)
    _run(options, clock, *stand_ins)
    if not clock.steps:
        raise ParallelError("the script ended before a step of an optimizer returned")
    # A script that ends early has fewer steps than agreed.
    line.agreed(clock.steps[-1].elapsed_s)
    timed = clock.steps[_WARM_UP:] or clock.steps[-1:]
    plain = [step for step in timed if not step.detailed] or timed
    worked = [max(step.thread_s, step.processor_s / threads, 1e-9) for step in timed]
    return {
        "threads": threads,
        "slowdown": max(1.0, median(step.elapsed_s / own_s for step, own_s in zip(timed, worked, strict=True))),
        "modules": _by_module(clock, facts),
        **{
            f"{part.name.lower()}_s": median(step.part_s(part) for step in plain)
            for part in (Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER)
        },
    }


def _by_module(clock: Clock, facts: Facts) -> dict[str, tuple[float, float]]:
    """Return the seconds of each module in a forward and a backward, by its path."""
    detailed = [step for step in clock.steps if step.detailed]
    names = names_of(clock.modules, facts)
    seconds: defaultdict[tuple[str, Part], float] = defaultdict(float)
    for step in detailed[1:] or detailed:
        for owner, time_s in step.seconds.items():
            number = names.numbers.get(id(clock.modules[owner.module]), 0) if owner.module >= 0 else 0
            seconds[names.modules[number].path, owner.part] += time_s
    paths = {path for path, _ in seconds}
    return {path: (seconds[path, Part.FORWARD], seconds[path, Part.BACKWARD]) for path in sorted(paths)}


def _time_job(options: argparse.Namespace, enter: Enter, rank: int, hosts: Hosts, port: int, line: Line) -> None:
    """Take the steps of one of the job's ranks; tell of each its time by the clock, and that of the processor."""
    enter(0)
    if options.threads:
        torch.set_num_threads(options.threads)
    host, local = divmod(rank, hosts.ranks_per_host)
    places = {RankVariable.RANK: rank, RankVariable.LOCAL_RANK: local, RankVariable.GROUP_RANK: host}
    os.environ.update({name: str(value) for name, value in {**places, RankVariable.MASTER_PORT: port}.items()})
    os.environ[RankVariable.MASTER_ADDRESS] = _LOOPBACK

    def on_step() -> None:
        step = clock.steps[-1]
        line.tell((step.elapsed_s + step.data_s, step.processor_s))

    clock = Clock(on_step, detailed=False)
    _run(options, clock)


def _time_messages(rank: int, processes: int, port: int, line: Line) -> dict[str, Any]:
    """Time copies, and messages between processes."""
    torch.set_num_threads(1)
    line.agreed(0.0)
    links = {}
    if processes > 1:
        dist.init_process_group("gloo", init_method=f"tcp://{_LOOPBACK}:{port}", rank=rank, world_size=processes)
        links = collectives()
        dist.destroy_process_group()
    return {"copied": copied_bytes_per_second(), "collectives": msgspec.to_builtins(links)}


def _runs_here(layout: Layout, hosts: Hosts, memory: MemoryModel) -> bool:
    """Say whether the ranks of a layout can be processes of this machine."""
    # The library of data parallelism needs servers, which a job's supervisors start.
    if layout.library is Library.DATA_PARALLEL or layout.mesh.ranks > _RANKS_PER_CORE * _cores():
        return False
    return held_bytes(memory.memory(layout), hosts, layout) * hosts.count < _ROOM * _free_bytes()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_bytes(names: Mapping[str, int] = os.sysconf_names) -> int:
    if "SC_AVPHYS_PAGES" not in names:
        # macOS.
        return _FREE_BYTES
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_LOOPBACK, 0))
        return int(listener.getsockname()[1])
