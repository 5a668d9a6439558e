"""The facts of a step: digests of weights, states, samples and random numbers. Nothing is changed or drawn."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from herringbone_contract.rehearsal.records import COPY, LOCAL, SHARD, WHOLE, Tensor
from herringbone_parallel.torch.fingerprints.digests import digest, joined, sample_digests, sums
from herringbone_parallel.torch.position import random_state

# The random numbers that layers draw from, and not the script.
DEVICES = ("torch", "devices")
# More samples of one call than that are one digest.
_MAX_SAMPLES = 4096
# Elements of an output that are looked at: a language model returns gigabytes.
_MAX_OUTPUT = 1 << 22
_MAX_DEPTH, _MAX_LEAVES, _MAX_GROUPS = 5, 10_000, 16
# Wrappers that a script on another number of ranks does not have, in the names of parameters.
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class Measured(NamedTuple):
    """A tensor, which keeps its id from others, with its digest and its two sums at a moment."""

    tensor: torch.Tensor
    digest: torch.Tensor
    sums: torch.Tensor


def measured(
    tensors: Iterable[torch.Tensor], missing: dict[str, None], names: Mapping[int, str] = MappingProxyType({})
) -> dict[int, Measured]:
    """Return digests and sums of tensors by their ids, without waiting for a device; the others go to `missing`."""
    found = {}
    for tensor in tensors:
        try:
            values = local(tensor)
            found[id(tensor)] = Measured(tensor, digest(values), sums(values))
        except Exception as error:  # noqa: BLE001 - named in the record
            why = str(error) if isinstance(error, TypeError) else f"{type(error).__name__} of {type(tensor).__name__}"
            missing[f"{names.get(id(tensor), 'a buffer')}: {why}"[:200]] = None
    return found


def tensors(
    models: tuple[Iterable[nn.Module], Iterable[nn.Module]],
    optimizer: Optimizer,
    before: Mapping[int, Measured],
    missing: dict[str, None],
) -> dict[str, Tensor]:
    """Return the parameters and buffers of the modules that an optimizer trains, and of averaged ones, by name.

    `models` are the modules that were called, and the averaged ones. Tensors that were measured `before` are from then.
    """
    named = _named(*models, optimizer)
    names = {id(tensor): name for name, tensor in named.items()}
    now = measured(
        (tensor for number, tensor in zip(names, named.values(), strict=True) if number not in before), missing, names
    )
    all_measured = [one for number in names if (one := before.get(number) or now.get(number))]
    return {
        names[id(one.tensor)]: Tensor(_hex(bits), squares, total, one.tensor.numel(), _place(one.tensor))
        for one, bits, (squares, total) in zip(
            all_measured,
            numbers([one.digest for one in all_measured]),
            numbers([one.sums for one in all_measured]),
            strict=True,
        )
    }


def optimizer_state(optimizer: Optimizer) -> dict[str, str]:
    """Return a digest of each kind of state, such as "exp_avg", over all parameters in their order."""
    kinds: dict[str, list[Any]] = defaultdict(list)
    for parameter in _parameters(optimizer):
        # `state` makes what is asked for.
        for kind, value in optimizer.state.get(parameter, {}).items():
            kinds[str(kind)] += list(_leaves(value))
    found = {kind: [one for one in leaves if isinstance(one, torch.Tensor)] for kind, leaves in kinds.items()}
    digests = numbers([digest(local(one)) for ones in found.values() for one in ones])
    state = {}
    for kind, leaves in kinds.items():
        bits, digests = digests[: len(found[kind])], digests[len(found[kind]) :]
        state[kind] = hashed(repr((bits, [one for one in leaves if not isinstance(one, torch.Tensor)])))
    return state


def settings(optimizer: Optimizer) -> dict[str, Any]:
    """Return the settings of an optimizer: one value where all groups share it, else those of the groups."""
    values: dict[str, list[Any]] = defaultdict(list)
    for group in optimizer.param_groups:
        for name, value in group.items():
            value = value.tolist() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
            if name != "params" and isinstance(value, (bool, int, float, str, type(None), list, tuple)):
                values[name].append(list(value) if isinstance(value, tuple) else value)
    return {
        name: every[0]
        if all(one == every[0] for one in every)
        else every
        if len(every) <= _MAX_GROUPS
        else hashed(repr(every))
        for name, every in values.items()
        if all(isinstance(one, (bool, int, float, str, type(None))) for one in _leaves(every))
    }


def has_gradients(optimizer: Optimizer) -> bool:
    """Say whether any gradient is not zero."""
    found = [parameter.grad for parameter in _parameters(optimizer) if parameter.grad is not None]
    return any(bool(local(gradient).any()) for gradient in found)


def samples(arguments: Any) -> torch.Tensor | None:
    """Return a digest of each sample in the arguments of a call; None for tensors that are no data, but computed.

    The first tensor's first dimension counts the samples. Raises `TypeError` where there are no tensors.
    """
    found = [one for one in islice(_leaves(arguments), _MAX_LEAVES) if isinstance(one, torch.Tensor)]
    if not found:
        raise TypeError("no tensors")
    data = [local(one) for one in found if one.grad_fn is None]
    if not data:
        return None
    device = data[0].device
    count = next((len(one) for one in data if one.dim()), 1)
    if count > _MAX_SAMPLES:
        return joined([digest(one).reshape(1).to(device) for one in data])
    batched = [sample_digests(one) if one.dim() and len(one) == count else digest(one).expand(count) for one in data]
    return joined([one.to(device) for one in batched])


def contents(batch: Any) -> list[str]:
    """Return a digest of each tensor in a loader's batch."""
    found = [local(one) for one in islice(_leaves(batch), _MAX_LEAVES) if isinstance(one, torch.Tensor)]
    return [_hex(bits) for bits in numbers([digest(one) for one in found])]


def outputs(result: Any) -> list[torch.Tensor]:
    """Return digests of the tensors that a module has returned, of large ones in part."""
    found = [local(one) for one in islice(_leaves(result), _MAX_LEAVES) if isinstance(one, torch.Tensor)]
    return [digest(one.reshape(-1)[:_MAX_OUTPUT]) for one in found if one.is_contiguous()]


def random_numbers() -> dict[str, str]:
    """Return a digest of the state of each library's generator."""
    state = random_state.take()
    return {name: hashed(repr(value)) for name in state.__struct_fields__ if (value := getattr(state, name))}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of a tensor, as a plain one without a graph. Raises `TypeError` for no values."""
    plain = getattr(tensor, "_local_tensor", tensor).detach()
    if is_lazy(tensor) or plain.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(plain):
        raise TypeError("it has no values yet")
    if plain.is_quantized:
        raise TypeError("quantized")
    if plain.layout is not torch.strided:
        if plain.layout is not torch.sparse_coo:
            raise TypeError(f"of layout {plain.layout}")
        # In the order in which it is stored, which is deterministic where the training is.
        return torch.cat([plain._values().reshape(-1).double(), plain._indices().reshape(-1).double()])
    return plain.as_subclass(torch.Tensor)


def numbers(found: Sequence[torch.Tensor]) -> list[Any]:
    """Return the values of tensors of equal shapes; each device is waited for once."""
    values: dict[int, Any] = {}
    for device in dict.fromkeys(one.device for one in found):
        places = [place for place, one in enumerate(found) if one.device == device]
        values |= zip(places, torch.stack([found[place] for place in places]).tolist(), strict=True)
    return [values[place] for place in range(len(found))]


def texts(digests: torch.Tensor) -> list[str]:
    """Return digests of samples as texts: the upper 48 bits, which are the best."""
    return [_hex(bits)[:12] for bits in digests.tolist()]


def hashed(text: str) -> str:
    """Return a digest of a text."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _named(roots: Iterable[nn.Module], averages: Iterable[nn.Module], optimizer: Optimizer) -> dict[str, torch.Tensor]:
    mine = {id(parameter) for parameter in _parameters(optimizer)}
    models = [
        model for model in dict.fromkeys(map(_unwrapped, roots)) if any(id(one) in mine for one in model.parameters())
    ]
    named: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    prefixes = [f"{type(model).__name__}{number}." if len(models) > 1 else "" for number, model in enumerate(models)]
    averaged = [*averages]
    prefixes += [f"average {number}: " for number in range(len(averaged))]
    for prefix, model in zip(prefixes, (*models, *averaged), strict=True):
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            for wrapper in _WRAPPERS:
                name = name.replace(wrapper, "")
            if id(tensor) not in seen:
                named[prefix + name] = tensor
            seen.add(id(tensor))
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if id(parameter) not in seen:
                named[f"parameter {place} of group {number}"] = parameter
    return named


def _unwrapped(module: Any) -> Any:
    while isinstance(module, nn.parallel.DistributedDataParallel) or hasattr(module, "_orig_mod"):
        module = getattr(module, "_orig_mod", None) or module.module
    return module


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, (torch.Tensor, str, bytes, nn.Module, type)) or depth > _MAX_DEPTH:
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _leaves(one, depth + 1)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one, depth + 1)
    elif hasattr(value, "__dict__"):
        # A batch of a class of the script's.
        yield from _leaves(vars(value), depth + 1)
    else:
        yield value


def _place(tensor: torch.Tensor) -> str:
    placements: Any = getattr(tensor, "placements", None)
    if placements is None:
        return LOCAL if type(tensor).__name__ == "FlatParameter" else WHOLE
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    if all(placement.is_replicate() for placement in placements):
        return WHOLE
    if any(placement.is_partial() for placement in placements):
        return LOCAL
    copies = [
        where for where, placement in zip(mesh.get_coordinate(), placements, strict=True) if placement.is_replicate()
    ]
    return COPY if any(copies) else SHARD


def _hex(bits: int) -> str:
    return f"{bits & (1 << 64) - 1:016x}"
