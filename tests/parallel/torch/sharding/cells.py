"""Cells of the equality matrix: train a model under a layout of ranks, and in one process, and compare.

The functions that ranks run are here; `test_equality.py` and the campaign choose the cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from tests.parallel.torch.sharding.models import Batch, Model

STEPS, RATE = 5, 0.1
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


class Layout(NamedTuple):
    """A layout of ranks: their number, version 2's parameters, and the number of different batches in a step."""

    ranks: int
    parameters: dict[str, int]
    batches: int
    axes: frozenset[str] = frozenset()


LAYOUTS = {
    "shard 2": Layout(2, {"hybrid_shard_degree": 2}, 2),
    "shard 4": Layout(4, {"hybrid_shard_degree": 4}, 4),
    "hybrid 2x2": Layout(4, {"hybrid_shard_degree": 2}, 4),
    "tensor 2": Layout(2, {"tensor_parallel_degree": 2}, 1, frozenset({"tensor"})),
    "tensor 2 x shard 2": Layout(4, {"tensor_parallel_degree": 2}, 2, frozenset({"tensor"})),
    "context 2": Layout(2, {"context_parallel_degree": 2}, 1, frozenset({"context"})),
    "context 2 x shard 2": Layout(4, {"context_parallel_degree": 2}, 2, frozenset({"context"})),
}


# Version 1's library runs it: version 2 has no pipeline.
PIPELINE = Layout(
    4,
    # Version 1 clips gradients with shards, by default at a norm of 1.
    {"partitions": 2, "microbatches": 2, "ddp": True, "sharded_data_parallel_degree": 2, "sdp_gradient_clipping": 0},
    4,
    frozenset({"pipeline"}),
)


class Trained(NamedTuple):
    """The losses of this rank's batches, and on rank 0 the whole weights after the last step."""

    losses: list[float]
    weights: dict[str, torch.Tensor]


def part(batch: Batch, index: int, count: int) -> Batch:
    """Return one of `count` equal parts of a batch."""
    return {name: tensor.chunk(count)[index] for name, tensor in batch.items()}


def loss_of(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss, also of a model of transformers."""
    output = module(**batch)
    return output if isinstance(output, torch.Tensor) else output.loss


def train_sharded(model: Model, dtype: torch.dtype, cp_comm_type: str = "p2p") -> Trained:
    """Train as a user's script does, on one rank of a job that has the layout's parameters."""
    from herringbone_parallel.torch.sharding import state
    from herringbone_parallel.torch.sharding.transform import shard, transform

    library = state.get()
    module, batch = model.build(dtype)
    plan = model.plan if library.mesh.degrees.tensor > 1 else None
    module = shard(transform(module, library.device, cp_comm_type=cp_comm_type, plan=plan))
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9)
    own = {name: t.to(library.device) for name, t in part(batch, library.mesh.batch, library.mesh.batches).items()}
    losses = []
    for _ in range(STEPS):
        loss = loss_of(module, own)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Trained(losses, whole_weights(module, library.mesh.rank))


def train_all(
    models: Mapping[str, Model],
    dtypes: Sequence[torch.dtype],
    train: Callable[[Model, torch.dtype], Trained] = train_sharded,
) -> dict[tuple[str, torch.dtype], Any]:
    """Train several models one after the other on a rank: by name and dtype `Trained`, or the text of a refusal."""
    results: dict[tuple[str, torch.dtype], Any] = {}
    for name, model in models.items():
        for dtype in dtypes:
            try:
                results[name, dtype] = train(model, dtype)
            except ParallelError as error:
                results[name, dtype] = str(error)
    return results


def train_pipeline(model: Model, dtype: torch.dtype) -> Trained:
    """Train as a script of version 1 does, on one rank of a pipeline with shards."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, batch = model.build(dtype)
    module = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9))
    names = list(batch)

    @smp.step
    def step(*tensors: torch.Tensor) -> torch.Tensor:
        loss = loss_of(module, dict(zip(names, tensors, strict=True)))
        module.backward(loss)
        return loss

    own = part(batch, smp.rdp_rank(), smp.rdp_size())
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = step(*own.values()).reduce_mean()
        optimizer.step()
        losses.append(loss.item())
    weights = module.state_dict()
    parameters = {name for name, _ in model.build(dtype)[0].named_parameters()}
    return Trained(losses, {name: tensor.cpu() for name, tensor in weights.items() if name in parameters})


def whole_weights(module: nn.Module, rank: int) -> dict[str, torch.Tensor]:
    """Return the parameters, put together from all ranks; on rank 0 only. All ranks call it."""
    weights = {}
    for name, parameter in module.named_parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        if rank == 0:
            weights[name] = whole.detach().cpu()
    return weights


def train_alone(model: Model, dtype: torch.dtype, batches: int) -> Trained:
    """Train in one process, which adds up the gradients of the `batches` that the ranks of a layout have.

    Without batch norm the number changes nothing. With it, ranks normalise over their own samples.
    """
    module, batch = model.build(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        of_batches = [loss_of(module, part(batch, index, batches)) / batches for index in range(batches)]
        sum(of_batches).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(loss.item() for loss in of_batches))
    return Trained(losses, {name: parameter.detach() for name, parameter in module.named_parameters()})


class Difference(NamedTuple):
    """The largest difference of losses and of weights to one process; `weight` names the worst weight."""

    losses: float
    weights: float
    weight: str


def compare(by_rank: list[Trained], alone: Trained) -> Difference:
    """Compare the ranks' training with one process's. Ranks hold equally large batches, so losses have a mean."""
    mean = [sum(losses) / len(losses) for losses in zip(*(rank.losses for rank in by_rank), strict=True)]
    losses = max(abs(a - b) for a, b in zip(mean, alone.losses, strict=True))
    weights = by_rank[0].weights
    assert weights.keys() == alone.weights.keys()
    differences = {name: (weights[name] - alone.weights[name]).abs().max().item() for name in weights}
    worst = max(differences, key=differences.__getitem__)
    return Difference(losses, differences[worst], worst)
