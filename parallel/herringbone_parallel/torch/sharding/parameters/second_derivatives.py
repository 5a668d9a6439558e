"""Second derivatives through sharded models: penalties of gradients, forces, and equations with derivatives of inputs.

    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)     # [1]
    (loss + slope.pow(2).mean()).backward()                                  # [2]
    optimizer.step()                                                         # [3]

The graph that [1] makes reads gathered parameters. torch frees their memory behind a block's first backward, and [2]
would read freed memory, which kills the rank. So the memory stays from [1] to [3]. In [2] a gradient of a block may
arrive behind the block's own part of the backward, so gradients are averaged at the end of [2].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.sharding.parameters.tensors import is_shared

# In the order in which they were sharded, which is the same on all ranks.
_models: WeakKeyDictionary[Any, None] = WeakKeyDictionary()
# The groups of parameters whose gathered copies stay in memory, each with the versions of its parts.
_kept: dict[Any, list[int]] = {}
# torch's own function, which Python code calls for each backward.
_run: Any = None


def serve(model: nn.Module) -> None:
    """Serve second derivatives of a model that `fully_shard` has changed."""
    global _run
    _models[model] = None
    if _run is None:
        autograd: Any = torch.autograd
        _run, autograd._engine_run_backward = autograd._engine_run_backward, _run_backward
        register_optimizer_step_post_hook(_free_changed)


def _run_backward(
    outputs: Any, gradients: Any, keep: Any, create_graph: Any, inputs: Any, *args: Any, **more: Any
) -> Any:
    if any(is_shared(leaf) for leaf in inputs):
        raise ParallelError(
            "torch.autograd.grad, or backward(inputs=...), for parameters of a sharded model: the loss depends on"
            " gathered copies of them. Call loss.backward() and read parameter.grad; set requires_grad_(False) on"
            " parameters that should get none. Second derivatives by parameters, as in MAML, need a model without"
            " shard, for example in DistributedDataParallel"
        )
    if create_graph:
        _keep()
    # A backward inside a backward, as of a checkpoint, ends with the outer one.
    if not _kept or torch._C._current_graph_task_id() != -1:
        return _run(outputs, gradients, keep, create_graph, inputs, *args, **more)
    before = {group: _gradients(group) for group in _kept}
    with _without(_kept, "post_backward"):
        result = _run(outputs, gradients, keep, create_graph, inputs, *args, **more)
    reached = {group for group in before if _gradients(group) != before[group]}
    if create_graph and reached:
        raise ParallelError(
            "backward(create_graph=True) through a sharded model: the average of a gradient over the ranks has no"
            " graph. Leave create_graph out; for second derivatives by inputs call torch.autograd.grad(loss, inputs,"
            " create_graph=True)"
        )
    # Of these models only: a rank may still have a model that others have lost.
    for state in _states():
        if state._is_root and any(group in reached for one in state._state_ctx.all_states for group in _groups(one)):
            state._root_post_backward_final_callback()
    for group in before:
        group.reshard()
    return result


def _states() -> list[Any]:
    return [module._get_fsdp_state() for model in _models for module in model.modules() if hasattr(module, "unshard")]


def _groups(state: Any) -> list[Any]:
    return state._fsdp_param_groups  # type: ignore[no-any-return]


def _keep() -> None:
    for group in [group for state in _states() for group in _groups(state)]:
        if group not in _kept:
            _kept[group] = _versions(group)
            for parameter in group.fsdp_params:
                parameter.free_unsharded_param = _nothing


def _free_changed(*_: Any) -> None:
    """Free the gathered copies of parameters that an optimizer has changed, which are old now."""
    for group in [group for group, versions in _kept.items() if _versions(group) != versions]:
        del _kept[group]
        for parameter in group.fsdp_params:
            del parameter.free_unsharded_param
            if group.is_sharded:
                parameter.free_unsharded_param()


def _versions(group: Any) -> list[int]:
    # A write into the part itself counts there only.
    parameters = [parameter.sharded_param for parameter in group.fsdp_params]
    return [parameter._version + parameter._local_tensor._version for parameter in parameters]


def _gradients(group: Any) -> list[tuple[int, int]]:
    """Return what changes when gradients arrive at gathered parameters: the tensors, and the versions of each."""
    gathered = [getattr(parameter, "_unsharded_param", None) for parameter in group.fsdp_params]
    gradients = [None if tensor is None else tensor.grad for tensor in gathered]
    return [(0, 0) if gradient is None else (id(gradient), gradient._version) for gradient in gradients]


def _nothing(*_: Any) -> None:
    pass


@contextmanager
def _without(groups: Iterable[Any], method: str) -> Iterator[None]:
    for group in (groups := list(groups)):
        setattr(group, method, _nothing)
    try:
        yield
    finally:
        for group in groups:
            delattr(group, method)
