"""Decide which checkpoints of a folder a job with `keep_checkpoints` may remove. Pure.

A checkpoint is a folder with our manifest, a folder `checkpoint-N` with a `trainer_state.json`, or all files of .pt,
.pth, .ckpt, .safetensors, .keras or .h5 with the same step, epoch, iteration or leading number in their names. Nothing
else is ever removed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec

SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors", ".keras", ".h5")
# A number alone may be that of a rank, a shard or a fold, whose files belong together.
_NUMBER = re.compile(
    r"(?:(?<![a-z])(?:(?:step|epoch|iter|iteration|checkpoint|ckpt)[-_=.]?|weights[-_=.])|^)(\d+)(?![\d]|-of-)",
    re.IGNORECASE,
)
# Of another training beside this one, or chosen by the script.
_ANOTHER = re.compile(r"(?<![a-z])(?:(?:fold|seed|trial|run)[-_=.]?\d|best(?![a-z]))", re.IGNORECASE)
_Count = Annotated[int, msgspec.Meta(ge=1)]


class Keep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The checkpoints to keep: the newest `last`, and the `best` by a metric; the newest one always.

    >>> Keep(last=3, best=2, metric="eval/loss", objective_type="Minimize").last
    3

    Raises `ValueError` for keys that do not go together.
    """

    last: _Count | None = None
    best: _Count | None = None
    metric: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    objective_type: str | None = None

    def __post_init__(self) -> None:
        if self.last is None and self.best is None:
            raise ValueError('says nothing to keep; write for example {"last": 3}')
        if self.objective_type not in (None, "Minimize", "Maximize"):
            raise ValueError(f"objective_type {self.objective_type!r} is neither Minimize nor Maximize")
        needed = {"metric": self.metric, "objective_type": self.objective_type}
        for name, value in needed.items():
            if self.best is not None and value is None:
                raise ValueError(f"best needs {name}; metric is a name, and objective_type Minimize or Maximize")
            if self.best is None and value is not None:
                raise ValueError(f"{name} goes with best, the number of checkpoints to keep by it; give best, too")


class Candidate(NamedTuple):
    """A checkpoint of the folder. `value` is the metric's last one before it was written, None without any.

    `is_ours`: this job wrote it. `is_whole`: it is verified. `is_named`: a link or a file such as `newest` leads to it.
    """

    name: str
    time: float
    is_ours: bool = True
    is_whole: bool = True
    is_named: bool = False
    value: float | None = None


def number_of(name: str) -> str | None:
    """Return the number that files of one checkpoint share, None for a file that is no checkpoint by its name.

    >>> [number_of(name) for name in ("epoch=3-step=4000.ckpt", "rank1-step-40.pt", "05-0.12.keras", "last.ckpt")]
    ['3-4000', '40', '5', None]
    >>> number_of("model-00001-of-00003.safetensors"), number_of("rank0.pt"), number_of("step-4.json")
    (None, None, None)
    >>> number_of("fold0_epoch1.pt"), number_of("best_epoch_3.pt"), number_of("pretrained_weights50.pth")
    (None, None, None)
    """
    if not name.endswith(SUFFIXES) or _ANOTHER.search(name):
        return None
    return "-".join(str(int(number)) for number in _NUMBER.findall(name)) or None


def removable(candidates: Iterable[Candidate], keep: Keep) -> list[str]:
    """Return the names of checkpoints that are needed no more, the oldest first; the newest whole one is kept.

    >>> removable([Candidate("a", 1.0), Candidate("b", 2.0), Candidate("c", 3.0, is_whole=False)], Keep(last=1))
    ['a']

    Of equal values the earlier one is better, so that a metric at its limit changes nothing. Values that are not finite
    are never best. As long as no checkpoint has a value, all are kept: the metric's name may be wrong.
    """
    ours = sorted((one for one in candidates if one.is_ours and one.is_whole), key=lambda one: (one.time, one.name))
    kept = ours[-(keep.last or 1) :]
    if keep.best is not None:
        if all(one.value is None for one in ours):
            return []
        sign = 1 if keep.objective_type == "Minimize" else -1
        ranked = [(sign * one.value, one) for one in ours if one.value is not None and math.isfinite(one.value)]
        kept += [one for _, one in sorted(ranked, key=lambda pair: pair[0])[: keep.best]]
    return [one.name for one in ours if one not in kept and not one.is_named]
