"""Reads from the settings what replicas divide: the training state, the optimizer states alone, or nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import replace_leaves
from herringbone_parallel.torch.model_parallel.replicas.options import ReductionOptions
from herringbone_parallel.torch.model_parallel.replicas.reducer import NamedParameters, Peers, require_equal
from herringbone_parallel.torch.model_parallel.shards.group import ShardGroup
from herringbone_parallel.torch.model_parallel.shards.reducer import ShardedReducer
from herringbone_parallel.torch.model_parallel.shards.shards import Limits, Shards, Wrapper
from herringbone_parallel.torch.model_parallel.shards.updates import DividedUpdates

if TYPE_CHECKING:
    from herringbone_contract.model_parallel.version1 import ResolvedModelParallel

# (peers, this rank's parameters, options) -> the reducer of a model whose parameters are divided
Divider = Callable[[Peers, NamedParameters, ReductionOptions], ShardedReducer]


class Library(Protocol):
    """The part of the library's state that says what is divided."""

    settings: ResolvedModelParallel
    shard_group: ShardGroup | None
    peers: Any
    model: Any

    @property
    def optimizers(self) -> Iterable[Wrapper]: ...


# Optimizers whose update of an element depends on that element's own gradient and state alone, by exact type: a
# subclass may have a `step` of its own.
_OF_TORCH = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "ASGD", "RMSprop", "Rprop")
_ELEMENTWISE = {
    *(f"torch.optim.{name.lower()}.{name}" for name in _OF_TORCH),
    "apex.optimizers.fused_adam.FusedAdam",
    "apex.optimizers.fused_sgd.FusedSGD",
    "deepspeed.ops.adam.fused_adam.FusedAdam",
    "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam",
}
# Optimizers that take one number from all parameters, of which a rank of a pipeline has some; by lower case names.
_NEED_ALL = {
    "asam", "dadaptadagrad", "dadaptadam", "dadaptadan", "dadaptlion", "dadaptsgd", "fusedlamb", "gsam", "lbfgs",
    "nvlamb", "prodigy", "prodigyplusschedulefree", "sam",
}  # fmt: skip

# Packages whose other optimizers update each parameter by itself.
_BY_PARAMETER = ("torch.optim.", "herringbone_parallel.", "apex.optimizers.fused_")


def divider(library: Library) -> Divider | None:
    """Return the function that divides a model's parameters; None where the job's settings divide none."""
    group, settings = library.shard_group, library.settings
    if group is None or settings.sharded == 1:
        return None
    limits = Limits(
        bucket=settings.sdp_reduce_bucket_size,
        whole=settings.sdp_param_persistence_threshold,
        live=settings.sdp_max_live_parameters,
    )

    def divide(peers: Peers, named_parameters: NamedParameters, options: ReductionOptions) -> ShardedReducer:
        # The reducer compares the parameters that stay whole only.
        require_equal(peers, named_parameters(), options)
        module = library.model.module if settings.partitions == 1 else None
        return ShardedReducer(
            peers, Shards(group, limits, named_parameters, lambda: library.optimizers, module), options
        )

    return divide


def divided_updates(library: Library, optimizer: torch.optim.Optimizer, *, elementwise: bool) -> DividedUpdates | None:
    """Return what divides an optimizer's updates over replicas with whole parameters; None without that setting.

    Raises `ParallelError` where something is divided, unless the optimizer is known or said to be `elementwise`. A
    tensor group divides parameters, too.
    """
    group, kind = library.shard_group, type(optimizer)
    known = f"{kind.__module__}.{kind.__qualname__}" in _ELEMENTWISE
    if (group is not None or library.peers is not None) and not (elementwise or known):
        raise ParallelError(
            f"{kind.__name__} may use the norm, the shape or the largest value of a whole parameter, and with"
            f" {_key(library)} its step sees a part of each. Use an optimizer of torch that updates each element by"
            f" itself, such as AdamW; or, if {kind.__name__} does so, write smp.DistributedOptimizer(...,"
            " elementwise=True)"
        )
    needs_all = [base.__name__ for base in kind.__mro__ if base.__name__.lower() in _NEED_ALL]
    if library.settings.partitions > 1 and needs_all and not elementwise:
        raise ParallelError(
            f"{needs_all[0]} takes a number from all parameters at once, and with `partitions` each rank has some of"
            " them: use an optimizer that updates each parameter by itself, such as AdamW"
        )
    if library.settings.partitions > 1 and not (elementwise or known or kind.__module__.startswith(_BY_PARAMETER)):
        warnings.warn(
            f"{kind.__name__}.step() sees the parameters of its rank alone: a number that it takes from several"
            " parameters, such as the norm of all gradients, is that of one rank. Clip by"
            " torch.nn.utils.clip_grad_norm_ before the step, which counts all ranks. If each parameter is updated by"
            f" itself, smp.DistributedOptimizer(..., elementwise=True) ends this notice",
            stacklevel=4,
        )
    return DividedUpdates(group) if group is not None and library.settings.shard_optimizer_state else None


def refuse_join(library: Library) -> None:
    """Raise for `model.join`, under which a replica may end before the others, whose parts it has."""
    if library.shard_group is not None:
        raise ParallelError(
            f"model.join() with {_key(library)}: a replica without batches left still has a part of the training state"
            " that the others need. Give each replica as many batches, as DistributedSampler does"
        )


def _key(library: Library) -> str:
    if library.shard_group is None:
        return "tensor_parallel_degree"
    return "shard_optimizer_state" if library.settings.sharded == 1 else "sharded_data_parallel_degree"


@contextmanager
def gathered(shards: Shards | None, action: str) -> Iterator[Callable[[Any], Any]]:
    """Gather all parameters for a `with` block; the value copies out of it what is to stay.

        with gathered(model.shards, "model.state_dict()") as copied:
            state_dict = copied(model.module.state_dict())

    Without shards, and before the first step, nothing is gathered or copied. Otherwise every rank of the shard group
    must call it.
    """
    if shards is None or not shards.divided:
        yield lambda content: content
        return
    with shards.whole(action):
        yield _copied


def _copied(content: Any) -> Any:
    """Return a copy on the CPU; tensors on `meta` stay there."""

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.is_meta:
            return leaf
        return leaf.detach().to("cpu", copy=True)

    return replace_leaves(content, copied)
