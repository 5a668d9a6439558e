"""An optimizer's state in two forms, and the conversion between them.

numbered    torch's own: parameters are numbers, counted through all groups. Any torch optimizer over the same
            parameters in the same order loads it.
named       parameters are the model's dotted names, so that parts of it can be joined on another number of partitions

Both are dicts with "state", by parameter, and "param_groups", each with its options and its "params".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import replace_leaves

# The key that marks a state dict with the parameters of some ranks only; SMP v1's name.
PARTIAL_KEY = "_smp_is_partial"
# In a parameter's entry: its float32 copy, which the optimizer updates. In the state dict: the state of the loss scale.
MASTER_KEY = "master_weight"
LOSS_SCALE_KEY = "loss_scale"

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
    """Return the named form of a state dict of either form. Raises `ParallelError` for a state of other parameters."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
        raise ParallelError("this is no optimizer's state dict: it has no 'state' and 'param_groups'")
    sizes = [len(group["params"]) for group in state_dict["param_groups"]]
    expected_sizes = [len(names) for names in groups]
    if sizes != expected_sizes:
        raise ParallelError(
            f"the state is of another optimizer: it has groups of {sizes} parameters, here they have {expected_sizes}"
        )
    names = [name for group in groups for name in group]
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    if any(isinstance(key, str) for key in keys):
        if keys != names:
            key, name = next((key, name) for key, name in zip(keys, names, strict=True) if key != name)
            raise ParallelError(
                f"the optimizer's state is of another model: it has {key!r} where this one has {name!r}"
            )
        return {"state": dict(state_dict["state"]), "param_groups": list(state_dict["param_groups"])}
    return to_named(state_dict, dict(zip(keys, names, strict=True)), groups)


def join(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the named forms of several ranks; the options, and the loss scale if there is one, are the first rank's."""
    by_rank = list(parts)
    # Reversed, so that the first rank's entry counts if several ranks have one.
    state = {name: entry for part in reversed(by_rank) for name, entry in part["state"].items()}
    scale = {key: value for key, value in by_rank[0].items() if key == LOSS_SCALE_KEY}
    return {"state": state, "param_groups": by_rank[0]["param_groups"], **scale}


def on_cpu(structure: Any) -> Any:
    """Return the structure with its tensors on the CPU."""
    return replace_leaves(structure, lambda leaf: leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf)


def copied(structure: Any) -> Any:
    """Return the structure with copies of its tensors, so that an update in place leaves the originals alone."""
    return replace_leaves(structure, lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
