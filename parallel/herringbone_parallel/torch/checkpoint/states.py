"""A state of dicts as named tensors, and the rest as JSON.

    {"model": {"w": tensor}, "optimizer": {"state": {"w": {"exp_avg": tensor, "step": 3}}, "param_groups": [...]}}

    tensors: "model.w", "optimizer.state.w.exp_avg"
    values:  {"optimizer.state.w.step": 3}
    groups:  [{"lr": 0.1, ..., "params": ["w"]}]

Keys are joined by dots, as torch's own checkpoints join them, and `paths` keeps the split: a name may contain dots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint.pieces import Piece

GROUPS = "param_groups"
# Marks a value of JSON that stands for a Python value which JSON has not.
_TAG = "__python__"


class Flat(NamedTuple):
    """The parts of a state: tensors (or pieces) by joined name, and JSON values by joined name.

    `paths` maps each joined name to the keys that it was joined from, and `groups` a prefix to its parameter groups.
    """

    tensors: dict[str, Any]
    values: dict[str, Any]
    paths: dict[str, tuple[str, ...]]
    groups: dict[str, list[dict[str, Any]]]


def flatten(state: Mapping[str, Any]) -> Flat:
    """Return the parts of a state. Raises `ParallelError` for a value that is neither a tensor nor plain."""
    flat = Flat({}, {}, {}, {})
    for path, value in _leaves(state, ()):
        name = ".".join(path)
        if name in flat.paths:
            raise ParallelError(f"two values of the checkpoint have the name {name!r}")
        if path[-1] == GROUPS:
            flat.groups[".".join(path[:-1])] = [dict(group) for group in value]
            continue
        flat.paths[name] = path
        if _is_tensor(value):
            flat.tensors[name] = value
        else:
            flat.values[name] = encode(value, name)
    return flat


def nest(entries: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Return the dicts of which these are the leaves.

    >>> nest({("model", "a.b"): 1})
    {'model': {'a.b': 1}}
    """
    state: dict[str, Any] = {}
    for path, value in entries.items():
        inner = state
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    return state


def merge_groups(by_rank: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameter groups of all ranks: the first rank's options, and the names of all ranks.

    >>> merge_groups([{"": [{"lr": 1, "params": ["a"]}]}, {"": [{"lr": 1, "params": ["b"]}]}])
    {'': [{'lr': 1, 'params': ['a', 'b']}]}
    """
    merged: dict[str, list[dict[str, Any]]] = {}
    for groups in by_rank:
        for prefix, others in groups.items():
            known = merged.setdefault(prefix, [{**group, "params": list(group["params"])} for group in others])
            if len(known) != len(others):
                raise ParallelError(f"ranks have optimizers of {len(known)} and {len(others)} parameter groups")
            for group, other in zip(known, others, strict=True):
                names = set(group["params"])
                group["params"] += [name for name in other["params"] if name not in names]
    return merged


def encode(value: Any, name: str, large: dict[str, torch.Tensor] | None = None) -> Any:
    """Return a value as JSON. Small tensors, tuples and non-finite numbers are kept; others raise `ParallelError`.

    Large tensors are put into `large` by name, if it is given.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        # JSON has no infinity.
        return value if value - value == 0 else {_TAG: "float", "value": repr(value)}
    if isinstance(value, list):
        return [encode(item, f"{name}.{number}", large) for number, item in enumerate(value)]
    if isinstance(value, (tuple, set, frozenset)):
        kind = "tuple" if isinstance(value, tuple) else "set"
        return {_TAG: kind, "value": [encode(item, f"{name}.{number}", large) for number, item in enumerate(value)]}
    if isinstance(value, Mapping):
        if not isinstance(value, Counter) and all(isinstance(key, str) and key != _TAG for key in value):
            return {key: encode(item, f"{name}.{key}", large) for key, item in value.items()}
        pairs = [[encode(key, name), encode(item, f"{name}.{key}", large)] for key, item in value.items()]
        return {_TAG: "counter" if isinstance(value, Counter) else "dict", "value": pairs}
    if isinstance(value, torch.Tensor):
        if value.numel() <= 1024:
            dtype = str(value.dtype).removeprefix("torch.")
            return {_TAG: "tensor", "dtype": dtype, "value": encode(value.detach().cpu().tolist(), name)}
        if large is not None:
            large[name] = value
            return {_TAG: "large", "value": name}
    raise ParallelError(
        f"the checkpoint's value {name!r} is a {type(value).__qualname__}: a checkpoint holds tensors, numbers,"
        " strings, and lists and dicts of them. Put other objects into user_content"
    )


def decode(value: Any, read: Callable[[str], torch.Tensor] | None = None) -> Any:
    """Return the value that `encode` made this JSON of; `read` returns a large tensor by its name."""
    if isinstance(value, list):
        return [decode(item, read) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_TAG)
    if kind is None:
        return {key: decode(item, read) for key, item in value.items()}
    try:
        return _decode_kind(kind, value, read)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ParallelError(
            f"the checkpoint's value of the kind {kind!r} is damaged: {type(error).__name__}: {error}"
        ) from error


def _decode_kind(kind: Any, value: dict[str, Any], read: Callable[[str], torch.Tensor] | None) -> Any:
    if kind == "float":
        return float(value["value"])
    if kind in ("tuple", "set"):
        items = [decode(item, read) for item in value["value"]]
        return tuple(items) if kind == "tuple" else set(items)
    if kind in ("dict", "counter"):
        pairs = {decode(key): decode(item, read) for key, item in value["value"]}
        return pairs if kind == "dict" else Counter(pairs)
    if kind == "tensor" and isinstance(dtype := getattr(torch, str(value["dtype"]), None), torch.dtype):
        return torch.tensor(decode(value["value"]), dtype=dtype)
    if kind == "large" and read is not None:
        return read(str(value["value"]))
    raise ParallelError(f"the checkpoint has a value of the unknown kind {kind!r}; a newer release wrote it")


def _leaves(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, item in value.items():
        if not isinstance(key, str):
            raise ParallelError(
                f"the checkpoint's state has the key {key!r} in {'.'.join(path) or 'its top'}: keys are names. An"
                " optimizer's state comes by parameter name, as torch's get_optimizer_state_dict returns it"
            )
        if isinstance(item, Mapping) and item:
            yield from _leaves(item, (*path, key))
        else:
            yield (*path, key), item


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, Piece)) or (
        isinstance(value, list) and len(value) > 0 and all(isinstance(part, Piece) for part in value)
    )
