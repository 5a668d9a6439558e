"""Review the arguments of an estimator call, with the tables of the options."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from herringbone.backends.registry import backend_for
from herringbone.backends.review.checks import REFUSED, UNUSED
from herringbone.plan.options.names import ESTIMATOR_ARGUMENTS, LEFT_OUT, OWN_ARGUMENTS, RENAMED
from herringbone.plan.options.typed import parse_options
from herringbone.plan.request import DISTRIBUTION_RULES
from herringbone_contract.distribution import parse
from herringbone_contract.errors import DistributionError, OptionError, UnsupportedError

# The order of `sagemaker.estimator.Estimator`, whose first argument is the image; ours is the script.
ESTIMATOR_ORDER = ("image_uri", "role", "instance_count", "instance_type")
Kind = Literal["changed", "note", "left"]


class Note(msgspec.Struct, frozen=True):
    """A message about one line. The kind `left` is for code that could not be converted."""

    line: int
    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.kind}: {self.text}"


def review_argument(estimator: str, keyword: ast.keyword, *, on_this_machine: bool) -> Iterator[Note]:
    """Yield the notes on one keyword argument. `on_this_machine` is False for a job that surely runs elsewhere.

    >>> call = ast.parse("PyTorch(volume_size=100)", mode="eval").body
    >>> print(*review_argument("PyTorch", call.keywords[0], on_this_machine=True))
    line 1: note: volume_size: not used by a job on this machine; kept
    """
    name, line = keyword.arg, keyword.value.lineno
    if name is None:
        yield Note(line, "note", "**: its content is known when the script runs, and checked then")
        return
    is_literal, value = _literal(keyword.value)
    if name in RENAMED:
        yield Note(line, "changed", f"{name}: now {RENAMED[name]}")
        name = RENAMED[name]
    if name in (*ESTIMATOR_ARGUMENTS, *OWN_ARGUMENTS.get(estimator, ())):
        if is_literal:
            yield from _review_own(estimator, name, value, line)
        return
    # A value that only a run would show counts as valid (None), except for options of a missing feature: those are
    # refused unless the value switches them off, and any object does not.
    unknown = object() if name in LEFT_OUT else None
    try:
        parse_options({name: value if is_literal else unknown})
    except (OptionError, UnsupportedError) as error:
        yield Note(line, "left", str(error))
        return
    if on_this_machine and name in UNUSED:
        yield Note(line, "note", f"{name}: not used by a job on this machine; kept")
    if on_this_machine and name in REFUSED:
        yield Note(line, "note", f"{name}: refused by a job on this machine: {REFUSED[name]}")


def _review_own(estimator: str, name: str, value: Any, line: int) -> Iterator[Note]:
    if name == "distribution" and isinstance(value, dict) and not _names_a_file(value):
        try:
            parse(value, framework=DISTRIBUTION_RULES.get(estimator))
        except DistributionError as error:
            yield Note(line, "left", f"distribution: {error}; AWS's SDK may have ignored it")
    if name == "instance_type" and isinstance(value, str):
        try:
            backend_for(value)
        except UnsupportedError as error:
            yield Note(line, "note", str(error))


def _names_a_file(distribution: dict[Any, Any]) -> bool:
    """Return True if `parameters` is a path. Its file is not read: a conversion reads the script alone."""
    strategies = distribution.get("smdistributed")
    settings = strategies.values() if isinstance(strategies, dict) else ()
    return any(isinstance(entry, dict) and isinstance(entry.get("parameters"), str) for entry in settings)


def _literal(node: ast.expr) -> tuple[bool, Any]:
    try:
        # literal_eval runs no code: calls and names of the script are no literals.
        return True, ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False, None
