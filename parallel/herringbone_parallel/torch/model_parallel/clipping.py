"""Gradient clipping by the norm over the whole model, of which each rank has a part.

torch's own `clip_grad_norm_` does the same for parameters of a distributed model. torch's `get_total_norm` sees
gradients only, of which a rank may have none, so it is refused for them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.utils.clip_grad as torch_clipping

from herringbone_contract.errors import ParallelError
from herringbone_contract.library_hooks import require
from herringbone_parallel.core.groups import CommGroup
from herringbone_parallel.torch.library_hooks import CLIPPING
from herringbone_parallel.torch.model_parallel import state
from herringbone_parallel.torch.model_parallel.between_steps import check_between_steps
from herringbone_parallel.torch.model_parallel.runtime.microbatch import OWNER_ATTRIBUTE


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scale the gradients down to a global norm of at most `max_norm`, and return the norm before that.

        smp.clip_grad_norm_(model.parameters(), 1.0)

    Every rank calls it, between the step function and `optimizer.step()`. The norm and the result are those of
    `torch.nn.utils.clip_grad_norm_` in one process: replicas have the same gradients, which count once.
    """
    check_between_steps("clip_grad_norm_()")
    return clip_for(state.get().optimizers, parameters, max_norm, norm_type, error_if_nonfinite)


def clip_for(
    optimizers: Sequence[state.OptimizerWrapper],
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Clip gradients as `clip_grad_norm_` does; `optimizers` are those that may use them, the same on every rank."""
    norm_type = float(norm_type)
    if not norm_type > 0:
        raise ParallelError(f"norm_type must be above 0 (math.inf for the largest element), not {norm_type!r}")
    library = state.get()
    clipped = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    owned = [hasattr(parameter, OWNER_ATTRIBUTE) for parameter in clipped]
    if any(owned) and not all(owned):
        raise ParallelError(
            "clip_grad_norm_ of parameters of the DistributedModel together with others, whose gradients would count"
            " once for each rank of the pipeline: make the others a part of the model, or clip them in a call of their"
            " own"
        )
    graded = _graded(optimizers, clipped)
    largest = math.isinf(norm_type)
    shards = _shards()
    share = _shares(library)
    total = _total(((p, g) for p, g in graded if shards is None or not shards.has(p)), norm_type, library, share)
    if shards is not None:
        # Each rank has other elements of sharded parameters, and the same ones of all others.
        parts = _total(((p, g) for p, g in graded if shards.has(p)), norm_type, library, share)
        parts = shards.total(parts, largest=largest)
        total = torch.maximum(total, parts) if largest else total + parts
    operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
    dist.all_reduce(total, operation, group=library.groups[CommGroup.MP_GROUP])
    if not largest:
        total = total ** (1.0 / norm_type)
    if error_if_nonfinite and not torch.isfinite(total):
        # torch's own error: on every rank, because all have the same sum.
        raise RuntimeError(
            f"the total norm of order {norm_type} of the gradients is {total.item()}, so it is not clipped"
        )
    # torch's own formula; above 1 there is nothing to clip.
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for _, gradient in graded:
        gradient.detach().mul_(scale.to(gradient))
    # Of all parameters and not of the gradients, so that the type is the same on a rank without any.
    dtypes = (parameter.dtype for parameter in clipped)
    return total.to(functools.reduce(torch.promote_types, dtypes, torch.get_default_dtype()))


def _graded(
    optimizers: Sequence[state.OptimizerWrapper], parameters: list[torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pair parameters with the gradients that optimizers will use: unscaled, and those of float32 copies if any."""
    scaling = [optimizer for optimizer in optimizers if optimizer.scales]
    for optimizer in scaling:
        optimizer.unscale()
    graded = []
    for tensor in parameters:
        # A script may pass the copies, which an optimizer's groups have.
        parameter, trained = tensor, tensor
        for optimizer in scaling:
            parameter = optimizer.parameter_of(parameter)
            trained = optimizer.trained(trained)
        if trained.grad is not None:
            graded.append((parameter, trained.grad))
    return graded


def _total(
    graded: Iterable[tuple[torch.Tensor, torch.Tensor]],
    norm_type: float,
    library: state.State,
    share: Callable[[torch.Tensor], float],
) -> torch.Tensor:
    """Return the largest norm for an infinite `norm_type`, and otherwise the sum of the norms to that power."""
    # In float64, so that the result hardly depends on the partition.
    total = torch.zeros((), dtype=torch.float64, device=library.device)
    for parameter, gradient in graded:
        if gradient.numel():
            norm = torch.linalg.vector_norm(gradient, norm_type).to(total)
            total = torch.maximum(total, norm) if math.isinf(norm_type) else total + share(parameter) * norm**norm_type
    return total


def _shares(library: state.State) -> Callable[[torch.Tensor], float]:
    """Return what knows this rank's share of a parameter's norm: parameters that a tensor group has whole count once.

    It reads the model's tree once, so take a new one for each clip.
    """
    if library.peers is None:
        return lambda _: 1.0
    model: Any = library.model
    named = [] if model is None else model.scaled_batch_reducer_named_parameters()
    shared = {id(parameter) for _, parameter in named}
    share_of_whole = 1.0 / library.peers.degree
    return lambda parameter: 1.0 if id(parameter) in shared else share_of_whole


def serve_torch_clipping() -> None:
    """Make torch's functions that clip right for a distributed model; a second call changes nothing."""
    _replace("clip_grad_norm_", _clip)
    _replace("clip_grad_value_", _clip_values)
    _replace("_get_total_norm", _total_norm)
    require(CLIPPING)


def _inner(name: str) -> Any:
    """Return the cell of torch's function that holds its code, None if it is a plain function."""
    cells = getattr(torch_clipping, name).__closure__ or ()
    return next((cell for cell in cells if callable(cell.cell_contents)), None)


def _original(name: str) -> Callable[..., Any]:
    cell = _inner(name)
    found: Callable[..., Any] = getattr(torch_clipping, name) if cell is None else cell.cell_contents
    return found


_REPLACED = ("clip_grad_norm_", "clip_grad_value_", "_get_total_norm")
_originals = {name: _original(name) for name in _REPLACED}


def _replace(name: str, function: Callable[..., Any]) -> None:
    # Scripts import the function by its name. So this replaces the code behind torch's decorator, where there is one.
    cell = _inner(name)
    if cell is not None:
        cell.cell_contents = function
    else:
        setattr(torch_clipping, name, function)
        setattr(torch.nn.utils, name, function)


def _clip(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    clipped = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    # A rank may have none of the parameters that the others clip together.
    if _is_spread(clipped):
        return clip_grad_norm_(clipped, max_norm, norm_type, error_if_nonfinite)
    norm: torch.Tensor = _originals["clip_grad_norm_"](clipped, max_norm, norm_type, error_if_nonfinite, foreach)
    return norm


def _clip_values(
    parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    clipped = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    scaling = [optimizer for optimizer in state.get().optimizers if optimizer.scales] if state.is_initialized() else []
    # Every rank unscales, also one without any of the parameters that the others clip.
    if scaling and (_scaled(clipped) or _any_is_ours(clipped)):
        for _, gradient in _graded(scaling, clipped):
            gradient.detach().clamp_(-clip_value, clip_value)
    else:
        _originals["clip_grad_value_"](clipped, clip_value, foreach)


def _total_norm(tensors: torch.Tensor | Iterable[torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
    listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if _is_spread([]):
        model: Any = state.get().model
        # By identity: `parameter.grad` is the same object as long as the list holds it.
        gradients = {id(parameter.grad) for parameter in model.local_parameters() if parameter.grad is not None}
        if any(id(tensor) in gradients for tensor in listed):
            raise ParallelError(
                "torch.nn.utils.get_total_norm of the gradients of a distributed model, of which this rank has a part:"
                " smp.clip_grad_norm_(model.parameters(), math.inf) returns the norm over all ranks and clips nothing"
            )
    norm: torch.Tensor = _originals["_get_total_norm"](listed, *args, **kwargs)
    return norm


def _is_spread(clipped: list[torch.Tensor]) -> bool:
    """Say whether ranks have to clip together; for no parameters, whether they ever have to."""
    if not state.is_initialized():
        return False
    library = state.get()
    if library.model is None or not library.model.partitioned:
        return False
    shards = _shards()
    # A rank may have none of the parameters that the others clip together.
    if shards is not None and (not clipped or any(map(shards.has, clipped)) or _any_is_ours(clipped)):
        return True
    if _scaled(clipped):
        return True
    is_split = library.settings.partitions > 1 or library.peers is not None
    return is_split and (not clipped or _any_is_ours(clipped))


def _any_is_ours(parameters: list[torch.Tensor]) -> bool:
    if any(hasattr(parameter, OWNER_ATTRIBUTE) for parameter in parameters):
        return True
    # A model of one partition does not mark its parameters.
    model: Any = state.get().model
    ours = {id(parameter) for parameter in model.local_parameters()}
    return any(id(parameter) in ours for parameter in parameters)


def _shards() -> Any:
    """Return the model's shards; None for a model without."""
    library = state.get()
    return None if library.model is None else library.model.shards


def _scaled(parameters: list[torch.Tensor]) -> bool:
    """Say whether an optimizer that scales gradients updates one of the parameters; for none, whether there is one."""
    scaling = [wrapper for wrapper in state.get().optimizers if wrapper.scales]
    if not parameters:
        return bool(scaling)
    ids = {id(parameter) for parameter in parameters}
    trained = (p for wrapper in scaling for group in wrapper.optimizer.param_groups for p in group["params"])
    return any(id(parameter) in ids for parameter in trained) or any(
        wrapper.trained(parameter) is not parameter for wrapper in scaling for parameter in parameters
    )
