"""Recipes for PyTorch with which few large steps train as well as many small ones.

    from herringbone_parallel.torch.recipes.api import LARS, Schedule, scale_learning_rate, weight_groups

    optimizer = LARS(weight_groups(model, weight_decay=5e-5), lr=scale_learning_rate(0.1, batch=8192, base_batch=256))
    schedule = Schedule(length=epochs, warmup=5, decay="polynomial", power=2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.by_steps(steps_per_epoch))

Each recipe works by itself, and on any number of ranks. Use torch for the rest: `RAdam`, label smoothing
(`CrossEntropyLoss(label_smoothing=0.1)`), clipping (`clip_grad_norm_`: after DDP's sums all ranks have the same
gradients; ranks of a pipeline use `smp.clip_grad_norm_`).
"""

from herringbone_parallel.core.recipes.large_batch import (
    aggregation_for,
    scale_batch_norm_momentum,
    scale_learning_rate,
)
from herringbone_parallel.core.recipes.learning_rate import Schedule
from herringbone_parallel.torch.recipes.batch_norm import average_batch_norm, tune_batch_norm
from herringbone_parallel.torch.recipes.initialisation import require_equal, seeded
from herringbone_parallel.torch.recipes.lamb import LAMB
from herringbone_parallel.torch.recipes.lars import LARS
from herringbone_parallel.torch.recipes.precision import Precision
from herringbone_parallel.torch.recipes.weight_groups import weight_groups

__all__ = [
    "LAMB",
    "LARS",
    "weight_groups",
    "Schedule",
    "scale_learning_rate",
    "scale_batch_norm_momentum",
    "aggregation_for",
    "tune_batch_norm",
    "average_batch_norm",
    "seeded",
    "require_equal",
    "Precision",
]
