"""What becomes of the arguments of one estimator call; the options' own tables say it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from herringbone.backends.registry import backend_for
from herringbone.estimators.options import ESTIMATOR_ARGUMENTS, LEFT_OUT, RENAMED, parse_options
from herringbone.planning.checks import REFUSED, UNUSED
from herringbone_contract.distribution import Framework, parse
from herringbone_contract.errors import DistributionError, OptionError, UnsupportedError

# The order of `sagemaker.estimator.Estimator`, whose first argument is the image; ours is the script.
ESTIMATOR_ORDER = ("image_uri", "role", "instance_count", "instance_type")
_OWN = {"TensorFlow": ("model_dir",)}
_FRAMEWORKS: dict[str, Framework] = {"PyTorch": "pytorch", "TensorFlow": "tensorflow", "MXNet": "mxnet"}
Kind = Literal["changed", "note", "left"]


class Note(msgspec.Struct, frozen=True):
    """What was done, or must be known, at one line; `left` is what could not be converted."""

    line: int
    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.kind}: {self.text}"


def review_argument(estimator: str, keyword: ast.keyword, *, is_here: bool) -> Iterator[Note]:
    """Yield what there is to say of one keyword argument; `is_here` when the job is, or may be, one on this machine.

    >>> call = ast.parse("PyTorch(volume_size=100)", mode="eval").body
    >>> print(*review_argument("PyTorch", call.keywords[0], is_here=True))
    line 1: note: volume_size: not used by a job on this machine; kept
    """
    name, line = keyword.arg, keyword.value.lineno
    if name is None:
        yield Note(line, "note", "**: what is in it is seen when the script runs, and checked then")
        return
    known, value = _literal(keyword.value)
    if name in RENAMED:
        yield Note(line, "changed", f"{name}: now {RENAMED[name]}")
        name = RENAMED[name]
    if name in (*ESTIMATOR_ARGUMENTS, *_OWN.get(estimator, ())):
        if known:
            yield from _review_own(estimator, name, value, line)
        return
    # A value that only a run would tell is taken for a good one, but for options whose machinery is not here.
    unknown = object() if name in LEFT_OUT else None
    try:
        parse_options({name: value if known else unknown})
    except (OptionError, UnsupportedError) as error:
        yield Note(line, "left", str(error))
        return
    if is_here and name in UNUSED:
        yield Note(line, "note", f"{name}: not used by a job on this machine; kept")
    if is_here and name in REFUSED:
        yield Note(line, "note", f"{name}: refused by a job on this machine: {REFUSED[name]}")


def _review_own(estimator: str, name: str, value: Any, line: int) -> Iterator[Note]:
    if name == "distribution" and isinstance(value, dict) and not _names_a_file(value):
        try:
            parse(value, framework=_FRAMEWORKS.get(estimator))
        except DistributionError as error:
            yield Note(line, "left", f"distribution: {error}; AWS's SDK may have ignored it")
    if name == "instance_type" and isinstance(value, str):
        try:
            backend_for(value)
        except UnsupportedError as error:
            yield Note(line, "note", str(error))


def _names_a_file(distribution: dict[Any, Any]) -> bool:
    """Say whether `parameters` is a path: nothing but the script itself is read."""
    strategies = distribution.get("smdistributed")
    chosen = strategies.values() if isinstance(strategies, dict) else ()
    return any(isinstance(each, dict) and isinstance(each.get("parameters"), str) for each in chosen)


def _literal(node: ast.expr) -> tuple[bool, Any]:
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False, None
