"""The libraries for TensorFlow: `.data_parallel`, and `.horovod`'s names for the same sums."""

from herringbone_parallel.tensorflow.absent import require_tensorflow

require_tensorflow()
