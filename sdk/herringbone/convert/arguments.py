"""Review the arguments of an estimator call, with the tables of the options."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from herringbone.api.estimator import Estimator
from herringbone.api.tuner import HyperparameterTuner
from herringbone.backends.registry import backend_for
from herringbone.backends.review.checks import REFUSED, UNUSED
from herringbone.convert.chains import Chains
from herringbone.convert.edits import Edits
from herringbone.convert.names import ESTIMATORS
from herringbone.plan.arguments import names_of
from herringbone.plan.options.names import ESTIMATOR_ARGUMENTS, LEFT_OUT, OWN_ARGUMENTS, RENAMED
from herringbone.plan.options.typed import parse_options
from herringbone.plan.request import DISTRIBUTION_RULES
from herringbone_contract.distribution import parse
from herringbone_contract.errors import DistributionError, OptionError, UnsupportedError

# The order of `sagemaker.estimator.Estimator`, whose first argument is the image; ours is the script.
ESTIMATOR_ORDER = ("image_uri", "role", "instance_count", "instance_type")
_OWN = {**OWN_ARGUMENTS, "remote": ("dependencies", "include_local_workdir", "inputs")}
# Keywords of SDK v1 and v2 that say what is the case here anyway: scripts are what runs, and metrics are always kept.
_EXTRA = "on ml.*, extra_request={...} takes AWS's member of CreateTrainingJob"
_IDLE = ("script_mode", "enable_sagemaker_metrics")
# Attributes of objects, whose classes do not show them; a variable may also be a list or a dict of estimators.
_OF_TUNER = inspect.signature(HyperparameterTuner).parameters
_ATTRIBUTES = {*names_of("HuggingFace"), *_OF_TUNER, *dir(dict), *dir(list), "jobs"}
Kind = Literal["changed", "note", "left"]


class Note(msgspec.Struct, frozen=True):
    """A message about one line, "name: what holds". The kind `left`, "name: why; what to do instead", is for code that
    could not be converted."""

    line: int
    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.kind}: {self.text}"


def is_dropped(keyword: ast.keyword) -> bool:
    """Return True for an argument that goes: for a feature that is not here, or for what is always so here.

    >>> call = ast.parse("made(rules=[Rule()], profiler_config=None, script_mode=True)", mode="eval").body
    >>> [is_dropped(keyword) for keyword in call.keywords]
    [True, False, True]
    """
    name = keyword.arg
    return name in _IDLE or (name in LEFT_OUT and _literal(keyword.value) != (True, LEFT_OUT[name]))


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
    if is_dropped(keyword):
        why = "it is always so here" if name in _IDLE else f"since Herringbone does not have this feature; {_EXTRA}"
        yield Note(line, "changed" if name in _IDLE else "left", f"{name}: removed, {why}")
        return
    if name in RENAMED:
        yield Note(line, "changed", f"{name}: now {RENAMED[name]}")
        name = RENAMED[name]
    if name in (*ESTIMATOR_ARGUMENTS, *_OWN.get(estimator, ())):
        if is_literal:
            yield from _review_own(estimator, name, value, line)
        return
    # A value that only a run would show counts as valid (None).
    try:
        parse_options({name: value if is_literal else None})
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
            yield Note(line, "left", f"distribution: {error} (AWS's SDK may have ignored it)")
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


def review_methods(tree: ast.AST, chains: Chains, edits: Edits) -> Iterator[Note]:
    """Yield notes on what estimators and searches lack; remove it from the arguments of `fit`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fit":
            known = [inspect.signature(kind.fit).parameters.keys() for kind in _classes(node.func.value, chains)]
            taken = [{None, *names} - {"experiment_config"} for names in known]
            unknown = [keyword for keyword in node.keywords if any(keyword.arg not in names for names in taken)]
            edits.remove_arguments(node, unknown)
            for keyword in unknown:
                # AWS's tuner passes both on, and does not use them.
                level: Kind = "changed" if keyword.arg in ("logs", "verbose") else "left"
                yield Note(keyword.value.lineno, level, f"{keyword.arg}: removed; fit does not use it here")
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            text = ast.unparse(node)
            # AWS's estimators have the new name, too.
            if node.attr == "_current_job_name" or text.endswith(".latest_training_job.job_name"):
                new = "name" if node.attr == "job_name" else "latest_training_job.name"
                edits.rename_attribute(node, new)
                yield Note(node.lineno, "changed", f"{text}: now {new}")
            # A tuner's `deploy` refuses.
            elif node.attr not in _ATTRIBUTES and any(
                node.attr == "deploy" or not hasattr(kind, node.attr) for kind in _classes(node.value, chains)
            ):
                yield Note(node.lineno, "left", f"{text}: an estimator here trains; its model is the file model_data")


def _classes(node: ast.expr, chains: Chains) -> set[type[Estimator] | type[HyperparameterTuner]]:
    """Return the classes of estimators and searches that an expression may be."""
    classes = {"HyperparameterTuner": HyperparameterTuner, **dict.fromkeys(ESTIMATORS, Estimator)}
    return {classes[name] for name in chains.classes(node) & classes.keys()}
