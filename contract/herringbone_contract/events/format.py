"""Events: facts about a running job that programs read, where the log is what people read. Pure.

    rank, observer -> supervisor       [algo-1] \\x1e{"kind": "sample", "t": 1764000000.5, ...}     a line of its output
    controller     -> logs/algo-1.events      {"kind": "sample", "t": 1764000000.5, "host": "algo-1", ...}

An event is one JSON object on one line of at most MAX_EVENT_BYTES. `t` is its time in seconds since 1970. `host` is
there unless the event is about the whole job; `rank` is there if it is about one rank. Readers ignore kinds and members
that they do not know. The kinds:

    kind        members besides t, host, rank
    state       state, why                         the job's secondary status, as in the index
    metrics     name, source, since, step, by, values, pace     see `batches`
    progress    done, total, unit, eta             eta: seconds until the end; total and eta may be None
    steps       count, since, seconds, own         step times of a rank: `seconds` of each step; `count` steps in all;
                                                   `own`: without the wait for other ranks, where the library tells
    memory      peak, device                       the most bytes that a rank held: in torch's allocator for `device`
                                                   "cuda", growth of the process since torch's import for "cpu"
    sample      cpu, memory, ...                   resources of a host, see SAMPLE below
    checkpoint  path, bytes
    removed     path, successor, unit, after       a checkpoint that the job's `keep_checkpoints` does not keep
    restart     attempt, why
    stop        why, call, seconds, grace, saved   the end of a job that was asked to go, `seconds` after the notice:
                                                   `saved` is a checkpoint that came meanwhile, or None; ranks stopped
                                                   at this `call` of `should_stop`, None for a script that never asks
    drain       why                                the platform takes the host away, by the job's `drain_notice`
    straggler   seconds, median, ratio, steps, why    a rank whose steps take longer than the others', and its cause
    hang        since, why, ranks                  all ranks were silent for `since` seconds; `ranks` are the odd ones
    checksum    step, value                        of a rank's parameters, to be compared with those of its replicas
    fault       fault, why                         a fault of a kind in `policies` that words alone describe
    idle        seconds, limit, ends, what         no device of the job is used for `seconds`; at `limit` it `ends`
    stacks      id, why, text, groups              where all ranks are, see STACKS below
    answer      id, text, error                    the answer to a request of a client
    timeline    step, spans                        one pipeline step: [what, microbatch, partition, start, end], seconds
    fingerprint process, number, part, parts, text   a part of a rank's record of a step (`rehearsal.records`)
    bill        text
    alive       every, stopped                     the host's supervisor runs, and says so every so many seconds;
                                                   `stopped`: processes that somebody has stopped, in words. The
                                                   controller keeps no such event
    failure     record                             the job's failure, as the record's JSON, where no file takes it; the
                                                   controller keeps no such event
    lost        count                              events that were too many for the observer, of a rank or a host

SAMPLE: `cpu` in cores, `memory` and `memory_total` in bytes, `disk_read`, `disk_write`, `net_in`, `net_out` in bytes a
second; `machine` tells the machine whose memory `memory_total` is, unless the host has a limit of its own; `gpus` is a
list of {index, uuid, name, use (0 to 1), memory, memory_total, watts, celsius}; `ranks` maps a rank to {cpu, memory,
state} and, unless they are zero, `throttled`, `disk`, `cores` (seconds a second in which its control group had used up
its CPU time, it waited for a disk, other processes had its cores) and `swapped` (pages a second read back from swap). A
GPU may have `slowed`, why its clock is lower than asked for. `seconds` is the time that the sample covers; figures are
means over it.

STACKS: `groups` are ranks at the same place, the odd ones first: {ranks, hosts, odd, why, state, frames}; `frames` are
texts such as "train.py:12 in step", innermost first. `why` of the event is "request" or "hang".

Source for the mark: RFC 7464, JSON Text Sequences.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from herringbone_contract.constants import EVENT_MARK as EVENT_MARK

MAX_EVENT_BYTES = 64 * 1024
MAX_NAME_CHARS = 256
# Values of one `metrics` event.
MAX_BATCH = 1000

Event = dict[str, Any]

# The sources of metrics.
LOG, MLLOG, SCRIPT, HUGGING_FACE, TENSORBOARD = "log", "mllog", "script", "huggingface", "tensorboard"
MODEL_PARALLEL, DATA_PARALLEL, KERAS, LIGHTNING = "smp", "smddp", "keras", "lightning"


class Point(NamedTuple):
    """One value of a metric. `step` is None where the source does not count steps.

    `pace` is there where the place in the data is known: `step` less that of the optimizer, and the batches of a step.
    """

    time: float
    name: str
    value: float
    step: int | None = None
    rank: int | None = None
    source: str = SCRIPT
    pace: tuple[int, int] | None = None


def batches(points: Iterable[Point], most: int = MAX_BATCH) -> Iterator[Event]:
    """Join values of the same metric and rank that follow each other into `metrics` events.

    >>> [event] = batches([Point(1.0, "loss", 0.5, 10), Point(2.0, "loss", 0.25, 20)])
    >>> event["values"], event["step"], event["by"], event["since"], event["t"]
    ([0.5, 0.25], 10, 10, 1.0, 2.0)

    `step` is the first value's step, and each later one has `by` more; without steps both are None. The times of the
    values are evenly spaced from `since` to `t`, so callers pass points of about a second. An event has at most `most`.
    """
    open_batches: dict[tuple[str, int | None, str], Event] = {}
    for point in points:
        key = (point.name, point.rank, point.source)
        batch = open_batches.get(key)
        if batch is not None and not (len(batch["values"]) < most and _continues(batch, point)):
            yield open_batches.pop(key)
            batch = None
        if batch is None:
            open_batches[key] = {
                "kind": "metrics",
                "t": point.time,
                "rank": point.rank,
                "name": point.name[:MAX_NAME_CHARS],
                "source": point.source,
                "since": point.time,
                "step": point.step,
                "by": None,
                "values": [_number(point.value)],
                **({} if point.pace is None else {"pace": point.pace}),
            }
            continue
        if batch["by"] is None and point.step is not None:
            batch["by"] = point.step - batch["step"]
        batch["t"] = point.time
        batch["values"].append(_number(point.value))
    yield from open_batches.values()


def _continues(batch: Event, point: Point) -> bool:
    values = batch["values"]
    if batch.get("pace") != point.pace:
        return False
    if point.time < batch["t"] or (point.step is None) != (batch["step"] is None):
        return False
    return batch["by"] is None or point.step == batch["step"] + batch["by"] * len(values)


def _number(value: float) -> float | str:
    # JSON has no numbers that are not finite.
    return value if math.isfinite(value) else str(value)


def encode(event: Event) -> bytes:
    """Return an event as one line, without the mark and with the newline.

    >>> encode({"kind": "bill", "t": 1.0, "text": "$2"})
    b'{"kind":"bill","t":1.0,"text":"$2"}\\n'

    Raises `ValueError` for one that is longer than MAX_EVENT_BYTES, or has numbers that are not finite.
    """
    line = json.dumps(event, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    if len(line) > MAX_EVENT_BYTES:
        raise ValueError(
            f"an event of kind {event.get('kind')!r} has {len(line)} bytes; the limit is {MAX_EVENT_BYTES}"
        )
    return line


def parse(line: bytes) -> Event | None:
    """Return the event of a line without its mark; None for a line that is no event."""
    if len(line) > MAX_EVENT_BYTES:
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return None
    time = event.get("t")
    is_time = isinstance(time, (int, float)) and not isinstance(time, bool) and math.isfinite(time)
    return event if is_time else None
