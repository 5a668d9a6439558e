"""An optimizer's state in two forms, and the way from one to the other.

numbered    torch's own: parameters are numbers, counted through all groups. Any torch optimizer over the same
            parameters in the same order loads it.
named       parameters are the model's dotted names, so a part of it can be read on another number of partitions

Both are dicts with "state", by parameter, and "param_groups", each with its options and its "params".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import replace_leaves

# On what holds the parameters of some ranks only; SMP v1's name.
PARTIAL_KEY = "_smp_is_partial"

Groups = Sequence[Sequence[str]]


def to_named(state_dict: Mapping[str, Any], name_of: Mapping[int, str], groups: Groups) -> dict[str, Any]:
    """Return the named form of a torch optimizer's state dict; `groups` are the names in each group of the model."""
    return {
        "state": {name_of[number]: entry for number, entry in state_dict["state"].items()},
        "param_groups": [
            {**group, "params": list(names)} for group, names in zip(state_dict["param_groups"], groups, strict=True)
        ],
    }


def to_numbered(named: Mapping[str, Any], groups: Groups) -> dict[str, Any]:
    """Return the numbered form, over the parameters of all groups.

    >>> to_numbered({"state": {"b": {"step": 1}}, "param_groups": [{"lr": 1.0, "params": ["a", "b"]}]}, [["a", "b"]])
    {'state': {1: {'step': 1}}, 'param_groups': [{'lr': 1.0, 'params': [0, 1]}]}
    """
    number_of = {name: number for number, name in enumerate(name for names in groups for name in names)}
    return {
        "state": {number_of[name]: named["state"][name] for name in number_of if name in named["state"]},
        "param_groups": [
            {**group, "params": [number_of[name] for name in names]}
            for group, names in zip(named["param_groups"], groups, strict=True)
        ],
    }


def read(state_dict: Mapping[str, Any], groups: Groups) -> dict[str, Any]:
    """Return the named form of a state dict of either form; raises `ParallelError` when it is of other parameters."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
        raise ParallelError("this is no optimizer's state dict: it has no 'state' and 'param_groups'")
    sizes = [len(group["params"]) for group in state_dict["param_groups"]]
    wanted = [len(names) for names in groups]
    if sizes != wanted:
        raise ParallelError(
            f"the state is of another optimizer: it has groups of {sizes} parameters, here they have {wanted}"
        )
    names = [name for group in groups for name in group]
    given = [key for group in state_dict["param_groups"] for key in group["params"]]
    if any(isinstance(key, str) for key in given):
        if given != names:
            other = next((there, here) for there, here in zip(given, names, strict=True) if there != here)
            raise ParallelError(
                f"the optimizer's state is of another model: it has {other[0]!r} where this one has {other[1]!r}"
            )
        return {"state": dict(state_dict["state"]), "param_groups": list(state_dict["param_groups"])}
    return to_named(state_dict, dict(zip(given, names, strict=True)), groups)


def join(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the named forms of several ranks; the options are those of the first."""
    several = list(parts)
    state = {name: entry for part in reversed(several) for name, entry in part["state"].items()}
    return {"state": state, "param_groups": several[0]["param_groups"]}


def on_cpu(structure: Any) -> Any:
    """Return the structure with its tensors on the CPU."""
    return replace_leaves(structure, lambda leaf: leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf)


def copied(structure: Any) -> Any:
    """Return the structure with tensors of its own, so that updating them changes nothing else."""
    return replace_leaves(structure, lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
