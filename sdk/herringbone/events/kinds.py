"""The events that views, trackers and summaries read, as typed values: the one decode of an event. Pure.

`herringbone_contract.events.format` lists the kinds and says what their members mean. A damaged event, or one of a kind
that this release does not know, is None. Numbers are finite; only values of metrics need not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, get_args

import msgspec

from herringbone_contract.events.format import Event

# The step of a value whose source counts no steps.
NO_STEP = -1
# Seconds since 1970 of a year that no job sees.
MAX_TIME = 1e11
_MAX_STEP = 1 << 40

Time = Annotated[float, msgspec.Meta(ge=0, lt=MAX_TIME)]
Number = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
Step = Annotated[int, msgspec.Meta(gt=-_MAX_STEP, lt=_MAX_STEP)]


class Known(msgspec.Struct, gc=False, tag_field="kind", kw_only=True):
    """The members of all kinds: the time in seconds since 1970, the host and the rank that the event is about."""

    t: Time
    host: str = ""
    rank: Step | None = None


class State(Known, tag="state"):
    """A new secondary status of the job."""

    state: str
    why: str | None = None


class Batch(Known, tag="metrics"):
    """Values of one metric that follow each other; see `format.batches` for `since`, `step` and `by`."""

    name: str
    values: Annotated[list[float], msgspec.Meta(min_length=1)]
    source: str = ""
    since: Time | None = None
    step: Step | None = None
    by: Step | None = None

    @property
    def begin(self) -> float:
        """The time of the first value."""
        return self.t if self.since is None else min(self.since, self.t)

    @property
    def times(self) -> Sequence[float]:
        """The time of each value."""
        return times_of(len(self.values), self.begin, self.t)

    @property
    def steps(self) -> Sequence[int] | None:
        """The step of each value; None where the source counts none."""
        return steps_of(len(self.values), self.step, self.by)


class Progress(Known, tag="progress"):
    """The progress of a job: `done` of `total` units, and the seconds until its end; None for what is unknown."""

    done: Number
    total: Number | None = None
    unit: str = ""
    eta: Number | None = None

    @property
    def fraction(self) -> float | None:
        """The part that is done, from 0 to 1; None when the total is unknown."""
        return max(0.0, min(1.0, self.done / self.total)) if self.total else None

    @property
    def time(self) -> float:
        """The time at which the progress was reported, in seconds since 1970."""
        return self.t


class Steps(Known, tag="steps"):
    """The times of the last steps of a rank, which has taken `count` so far."""

    count: Step
    seconds: list[Number]
    since: Time | None = None


class Memory(Known, tag="memory"):
    """The most bytes that a rank has held, on the device "cuda" or "cpu"."""

    peak: int
    device: str


class Gpu(msgspec.Struct, gc=False, kw_only=True):
    """One GPU of a sample; None for a reading that it does not give."""

    index: int = 0
    uuid: str = ""
    name: str = ""
    use: Number | None = None
    memory: Number | None = None
    memory_total: Number | None = None
    watts: Number | None = None
    celsius: Number | None = None


class RankUse(msgspec.Struct, gc=False, kw_only=True):
    """The use of one rank."""

    cpu: Number | None = None
    memory: Number | None = None
    state: str | None = None


class Sample(Known, tag="sample"):
    """The resources of a host; `memory_total` is of the `machine`, unless that is ""."""

    machine: str = ""
    cpu: Number | None = None
    memory: Number | None = None
    memory_total: Number | None = None
    disk_read: Number | None = None
    disk_write: Number | None = None
    net_in: Number | None = None
    net_out: Number | None = None
    gpus: list[Gpu] | None = None
    ranks: dict[int, RankUse] | None = None

    def gpu_key(self, gpu: Gpu) -> tuple[str, int | str]:
        """Return what tells a GPU from all others, also if another host of the same machine reports it, too."""
        return ("", gpu.uuid) if gpu.uuid else (self.host, gpu.index)


class Checkpoint(Known, tag="checkpoint"):
    """A checkpoint that is complete."""

    path: str
    bytes: Number | None = None


class Removed(Known, tag="removed"):
    """A checkpoint that the job has removed, because it keeps others."""

    path: str
    successor: str = ""


class Restart(Known, tag="restart"):
    """Another attempt begins."""

    attempt: Step
    why: str | None = None
    machines: list[str] | None = None


class Stop(Known, tag="stop"):
    """The end of a job that was asked to go, `seconds` after the notice; `saved` is a checkpoint that came meanwhile.

    `call` is the call of `should_stop` at which ranks stopped, None for a script that never asks.
    """

    why: str = ""
    call: Step | None = None
    seconds: Number = 0.0
    grace: Number = 0.0
    saved: str | None = None


class Straggler(Known, tag="straggler"):
    """A rank whose steps take `seconds` where the median of all ranks is `median`; `why` is the cause, if known."""

    seconds: Number | None = None
    median: Number | None = None
    why: str | None = None


class Hang(Known, tag="hang"):
    """All ranks have been silent for `since` seconds; `ranks` are the odd ones."""

    since: Number | None = None
    why: str | None = None
    ranks: list[int] = []


class Fault(Known, tag="fault"):
    """A fault of the kind `fault` in `policies`; `why` says what was seen."""

    fault: str = ""
    why: str = ""


class Idle(Known, tag="idle"):
    """No device of the job has been used for `seconds`; `ends`: that was the limit."""

    seconds: Number | None = None
    limit: Number | None = None
    ends: bool = False
    what: str = ""


class StackGroup(msgspec.Struct, gc=False, kw_only=True):
    """Ranks at the same place; `frames` are texts, innermost first."""

    ranks: list[int] = []
    hosts: list[str] = []
    odd: bool = False
    why: str | None = None
    state: str | None = None
    frames: list[str] = []


class Stacks(Known, tag="stacks"):
    """The places where all ranks are, the odd ones first."""

    why: str | None = None
    text: str = ""
    groups: list[StackGroup] = []


class Span(msgspec.Struct, gc=False, array_like=True):
    """A stretch of work of a pipeline step, in seconds."""

    what: str
    microbatch: int
    partition: Annotated[int, msgspec.Meta(ge=0, lt=1_000)]
    start: Number
    end: Number


class Spans(msgspec.Struct, gc=False):
    """A pipeline step; `bubble` is the part in which a partition idles, on average."""

    spans: list[Span] = []
    bubble: Number | None = None


class Timeline(Known, tag="timeline"):
    """One rank's part of a pipeline step, or all of it, and what was predicted."""

    step: Step | None = None
    since: Time | None = None
    spans: list[Span] = []
    bubble: Number | None = None
    predicted: Spans | None = None


class Bill(Known, tag="bill"):
    """The cost of the job, in words."""

    text: str


AnyKind = (
    State
    | Batch
    | Progress
    | Steps
    | Memory
    | Sample
    | Checkpoint
    | Removed
    | Restart
    | Stop
    | Straggler
    | Hang
    | Fault
    | Idle
    | Stacks
    | Timeline
    | Bill
)
# By kind, because msgspec looks at a union anew in each call.
_KINDS: dict[object, type[AnyKind]] = {kind.__struct_config__.tag: kind for kind in get_args(AnyKind)}


# The figures of a sample over time, of its host and of each GPU.
HOST_FIGURES = ("cpu", "memory", "memory_total", "disk_read", "disk_write", "net_in", "net_out")
GPU_FIGURES = ("use", "memory", "memory_total", "watts", "celsius")


def decode(event: Event) -> AnyKind | None:
    """Return an event as a typed value.

    >>> decode({"kind": "progress", "t": 12.0, "done": 5, "total": 20, "unit": "step", "eta": 30.0}).fraction
    0.25
    >>> decode({"kind": "progress", "t": 12.0, "done": "much"}), decode({"kind": "new", "t": 12.0})
    (None, None)
    """
    if (kind := _KINDS.get(event["kind"])) is None:
        return None
    try:
        # Not strict: values that are not finite are written as text.
        return msgspec.convert(event, kind, strict=False, str_keys=True)
    except (msgspec.ValidationError, RecursionError):
        return None


def times_of(count: int, begin: float, end: float) -> Sequence[float]:
    """Return the times of `count` values that are evenly spaced."""
    spacing = (end - begin) / (count - 1) if count > 1 else 0.0
    return [begin + spacing * position for position in range(count - 1)] + [end] * (count > 0)


def steps_of(count: int, first: int | None, by: int | None) -> Sequence[int] | None:
    """Return the steps of `count` values; None where their source counts none.

    >>> list(steps_of(3, 10, 5)), steps_of(3, None, None)
    ([10, 15, 20], None)
    """
    if first is None or first < 0:
        return None
    # Without a distance there is one value, or all are of one step.
    return range(first, first + by * count, by) if by else [first] * count
