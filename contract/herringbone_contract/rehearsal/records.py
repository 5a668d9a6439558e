"""The records of a rank's optimizer steps, and the events in which they travel. Pure.

A rank whose environment has `HERRINGBONE_FINGERPRINTS=on` sends events of the kind `fingerprint`; `read` takes all
events of a job, those of several attempts, or those of a job and its continuation, one after the other.
"""

from __future__ import annotations

import base64
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from herringbone_contract.events.format import Event

KIND = "fingerprint"
# With the other members, a piece fits into a line that pipes take whole (`events.emit`).
MAX_PIECE_CHARS = 3800
MAX_PIECES = 5000
# A script may write what it likes.
_MAX_RECORD_BYTES = 64 << 20
# The places of a tensor: a whole one is equal on all ranks that have it; shards add up; copies of shards are not added;
# a local one is of this rank and this layout alone.
WHOLE, SHARD, COPY, LOCAL = "", "shard", "copy", "local"


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """One parameter or buffer: a digest of its bits, the sum of its squares, its sum, and its number of elements.

    The sums are None where they are not finite. `place` is where it is of; see above.
    """

    digest: str
    squares: float | None = 0.0
    total: float | None = 0.0
    size: int = 1
    place: str = WHOLE


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One completed step of one optimizer; all but `loss` and `outputs` is from before the step.

    number      counts the steps of all optimizers of this process, from 1
    optimizer   the number of the optimizer, in the order of their first steps
    ranks       the number of ranks that train together
    tensors     parameters and buffers by name
    state       the optimizer's state: a digest of each kind, such as "exp_avg"
    settings    the optimizer's settings, such as "lr", and the scale of the loss
    random      a digest of each library's random numbers when the first module was called
    draws       the step has drawn random numbers: dropout, for example
    samples     a digest of each sample that modules were called with since the last step, in order
    batches     of each batch that loaders have given since the last step: a digest of its indices, "" where the dataset
                has none, and one of each of its tensors
    outputs     a digest of what the modules returned
    loss        what was differentiated
    missing     what could not be recorded, in words
    """

    number: int
    optimizer: int = 0
    ranks: int = 1
    tensors: dict[str, Tensor] = {}
    state: dict[str, str] = {}
    settings: dict[str, Any] = {}
    random: dict[str, str] = {}
    draws: bool = False
    samples: list[str] = []
    batches: list[list[str]] = []
    outputs: str = ""
    loss: list[float | None] = []
    missing: list[str] = []


class Process(msgspec.Struct):
    """The steps of one process of a rank, from its first one on; `lost` steps have no record.

    `began` is the time of its first record, in seconds since 1970.
    """

    steps: list[Step]
    lost: int = 0
    began: float = 0.0


class Run(msgspec.Struct):
    """The processes of each rank in the order of their begin. An attempt and a resumed job begin new processes."""

    processes: dict[int, list[Process]]

    @property
    def steps(self) -> int:
        """The number of steps that rank 0 completed, those that were redone included."""
        return sum(len(process.steps) for process in self.processes.get(0, ()))


def pieces(process: str, step: Step) -> list[dict[str, Any]]:
    """Return the members of the events that carry a step; `process` is unique among all processes of a job.

    >>> [piece] = pieces("a1", Step(1))
    >>> piece["process"], piece["number"], piece["part"], piece["parts"]
    ('a1', 1, 0, 1)
    """
    text = base64.b64encode(zlib.compress(msgspec.json.encode(step), 1)).decode()
    texts = [text[begin : begin + MAX_PIECE_CHARS] for begin in range(0, len(text), MAX_PIECE_CHARS)]
    return [
        {"process": process, "number": step.number, "part": part, "parts": len(texts), "text": text}
        for part, text in enumerate(texts)
    ]


def read(events: Iterable[Event]) -> Run:
    """Return what the events of a job say; other kinds of events, and damaged ones, are passed over.

    >>> run = read({"kind": "fingerprint", "t": 5.0, "rank": 0, **piece} for piece in pieces("a1", Step(1)))
    >>> run.steps
    1
    """
    texts: dict[tuple[int, str], dict[int, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
    parts: dict[tuple[int, str, int], int] = {}
    began: dict[tuple[int, str], float] = {}
    for event in events:
        if event.get("kind") != KIND:
            continue
        try:
            piece = msgspec.convert(event, _Piece)
        except msgspec.ValidationError:
            continue
        key = piece.rank or 0, piece.process
        texts[key][piece.number][piece.part] = piece.text
        parts[(*key, piece.number)] = piece.parts
        began[key] = min(piece.t, began.get(key, piece.t))
    processes: dict[int, list[Process]] = defaultdict(list)
    for (rank, process), numbers in sorted(texts.items(), key=lambda item: began[item[0]]):
        steps = [
            step
            for number, found in sorted(numbers.items())
            if (step := _step(found, parts[rank, process, number])) is not None
        ]
        # The end of a killed process writes its last record in part.
        last = max(step.number for step in steps) if steps else 0
        processes[rank].append(Process(steps, last - len(steps), began[rank, process]))
    return Run(dict(processes))


class _Piece(msgspec.Struct):
    t: float
    process: str
    number: int
    part: int
    parts: int
    text: str
    rank: int | None = None


def _step(found: dict[int, str], parts: int) -> Step | None:
    if sorted(found) != list(range(parts)):
        return None
    try:
        content = base64.b64decode("".join(text for _, text in sorted(found.items())))
        return msgspec.json.decode(zlib.decompressobj().decompress(content, _MAX_RECORD_BYTES), type=Step)
    except (ValueError, zlib.error, msgspec.DecodeError):
        return None
