"""Recipes for large batches on TensorFlow with Keras 3: few large steps train as well as many small ones.

    from herringbone_parallel.tensorflow.recipes.api import LARS, Schedule, ScheduledRate, scale_learning_rate

    schedule = Schedule(length=epochs, warmup=5, decay="polynomial", power=2)
    rate = ScheduledRate(scale_learning_rate(0.1, batch=8192, base_batch=256), schedule, steps_per_unit=steps_per_epoch)
    model.compile(sdp.DistributedOptimizer(LARS(rate, weight_decay=5e-5)), loss=..., jit_compile=False)

Each piece works alone, and on any number of ranks. Keras itself has the rest:

- label smoothing: `CategoricalCrossentropy(label_smoothing=0.1)`
- clipping: `global_clipnorm=1.0` of any optimizer; it comes after the sums over the ranks
- equal starts: `keras.utils.set_random_seed`
- 16 bits: `keras.config.set_dtype_policy("mixed_bfloat16")`
"""

from herringbone_parallel.core.recipes.large_batch import (
    aggregation_for,
    scale_batch_norm_momentum,
    scale_learning_rate,
)
from herringbone_parallel.core.recipes.learning_rate import Schedule
from herringbone_parallel.tensorflow.recipes.batch_norm import average_batch_norm, tune_batch_norm
from herringbone_parallel.tensorflow.recipes.lamb import LAMB
from herringbone_parallel.tensorflow.recipes.lars import LARS
from herringbone_parallel.tensorflow.recipes.learning_rate import ScheduledRate

__all__ = [
    "LAMB",
    "LARS",
    "Schedule",
    "ScheduledRate",
    "scale_learning_rate",
    "scale_batch_norm_momentum",
    "aggregation_for",
    "tune_batch_norm",
    "average_batch_norm",
]
