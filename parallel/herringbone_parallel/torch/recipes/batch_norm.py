"""BatchNorm on many ranks: momentum for a larger batch, and equal running statistics on all ranks for evaluation."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.recipes.large_batch import scale_batch_norm_momentum


def tune_batch_norm(model: nn.Module, *, batch: int, base_batch: int) -> None:
    """Set the momentum of the model's BatchNorm layers for fewer, larger steps.

        tune_batch_norm(model, batch=rank_batch * ranks, base_batch=256)

    `batch` and `base_batch` count the examples of all ranks between two updates of a rank's running statistics. A layer
    updates its statistics in every forward, even if several forwards make one step. A layer with `momentum=None`
    averages all examples, and stays unchanged.
    """
    for layer in _layers(model):
        if layer.momentum is not None:
            layer.momentum = scale_batch_norm_momentum(layer.momentum, batch=batch, base_batch=base_batch)


@torch.no_grad()
def average_batch_norm(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Give all ranks the running statistics of all ranks' examples, with one sum for the whole model.

        average_batch_norm(model)           # every rank, before it evaluates or saves
        model.eval()

    Means are averaged. A variance becomes the variance of all ranks' examples together, with equal weights for the
    ranks. A lone process does nothing. Raises `ParallelError` if the ranks' models differ.
    """
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return
    # Layers with `track_running_stats=False` have no statistics.
    statistics = [
        (layer.running_mean, layer.running_var)
        for layer in _layers(model)
        if layer.running_mean is not None and layer.running_var is not None
    ]
    if not statistics:
        return
    means = [mean.double() for mean, _ in statistics]
    # In double precision: the variance below is a small difference of large squares.
    squares = [variance.double() + mean.double().square() for mean, variance in statistics]
    together = torch.cat([tensor.flatten() for tensor in (*means, *squares)])
    _require_one_size(together.numel(), together.device, group)
    dist.all_reduce(together, group=group)
    together /= dist.get_world_size(group)
    parts = torch.split(together, [tensor.numel() for tensor in (*means, *squares)])
    for (mean, variance), new_mean, square in zip(statistics, parts[: len(means)], parts[len(means) :], strict=True):
        mean.copy_(new_mean)
        variance.copy_(square - new_mean.square())


def _layers(model: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]


def _require_one_size(size: int, device: torch.device, group: dist.ProcessGroup | None) -> None:
    # The maximum of -size is minus the smallest size, so one all-reduce finds both extremes.
    extremes = torch.tensor([size, -size], device=device)
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group=group)
    most, least = extremes[0].item(), -extremes[1].item()
    if most != least:
        raise ParallelError(
            f"average_batch_norm: the ranks' models differ: {least} to {most} running statistics, {size} of them here;"
            " build the same model on every rank"
        )
