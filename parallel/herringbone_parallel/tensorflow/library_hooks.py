"""The hooks into TensorFlow and Keras, with a probe of each (`herringbone_contract.library_hooks`).

Each list is of one of our libraries for TensorFlow, which requires it when it starts. Importing this module imports no
TensorFlow.
"""

from __future__ import annotations

from herringbone_contract.library_hooks import Hook, exists, is_set, named_in, reached, takes


def _called() -> object:
    import keras

    # Without `__init__`, which would make variables later on.
    return object.__new__(keras.layers.Dense)(0)


_GRAPHS = "cut a step into segments"
_READS = "refuse to read a weight of another rank"
_COPIES = "copy an optimizer with all its settings"
_OLD = "read scripts of TensorFlow 2.3 to 2.6"
_OPTIMIZER = "keras.src.optimizers.base_optimizer:BaseOptimizer."
_APPLY = named_in(f"{_OPTIMIZER}apply_gradients")
# The methods of TensorFlow's variables that read the value, as an addition to it does.
READING_METHODS = (
    *("_read_variable_op", "sparse_read", "gather_nd", "_serialize_to_tensors", "_strided_slice_assign"),
    *("assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_mul", "scatter_div", "scatter_max"),
    *("scatter_min", "scatter_update", "batch_scatter_update", "scatter_nd_add", "scatter_nd_sub"),
    *("scatter_nd_max", "scatter_nd_min", "scatter_nd_update"),
)
# smdistributed.modelparallel: the trace of a step, and its checks.
MODEL_PARALLEL = (
    Hook("keras.layers:Layer.__call__", "see the layers of a step", reached(_called)),
    Hook("tensorflow:gradients", "see the gradients of a step", takes("ys", "xs")),
    Hook("tensorflow:GradientTape.gradient", "see the gradients of a step", takes("target", "sources")),
    Hook("keras.optimizers:LossScaleOptimizer.scale_loss", "refuse a scale that changes", takes("loss")),
    Hook(f"{_OPTIMIZER}apply", "refuse a norm over all gradients", _APPLY),
    Hook("tensorflow.python.framework.func_graph:func_graph_from_py_func", _GRAPHS, takes("name", "func_graph")),
    Hook("tensorflow.python.ops.resource_variable_ops:UninitializedVariable", _GRAPHS, exists),
    *(
        Hook(f"tensorflow.python.ops.resource_variable_ops:UninitializedVariable.{name}", _READS, exists)
        for name in READING_METHODS
    ),
    Hook("tensorflow.python.framework.ops:get_stats_for_node_def", "measure a step for the partition", exists),
)
# smdistributed.dataparallel, and Horovod's names.
DATA_PARALLEL = (
    Hook(f"{_OPTIMIZER}apply", "skip steps with incomplete sums", _APPLY),
    Hook(f"{_OPTIMIZER}_clip_gradients", "sum gradients before they are clipped", exists),
    *(
        Hook(f"{_OPTIMIZER}{name}", _COPIES, is_set)
        for name in ("_tracker", "_variables", "_trainable_variables", "_iterations", "_learning_rate")
    ),
    Hook(f"{_OPTIMIZER}add_variable", _COPIES, takes("shape", "dtype", "aggregation", "name")),
    Hook("keras.src.utils.tracking:TrackedList", _COPIES, takes("values", "tracker")),
)
_MODEL = "keras:Model."
KERAS_COMPAT = (
    Hook(f"{_OPTIMIZER}apply_gradients", _OLD, takes("grads_and_vars")),
    *(Hook(f"{_MODEL}{name}", _OLD, exists) for name in ("fit", "evaluate", "predict", "compile", "save")),
    *(Hook(f"{_MODEL}{name}", _OLD, takes("filepath")) for name in ("save_weights", "load_weights")),
    Hook("keras.src.legacy.saving.legacy_h5_format:save_weights_to_hdf5_group", _OLD, exists),
)
_EPOCH = "keras.src.trainers.epoch_iterator:EpochIterator._enumerate_iterator"
_ADAPTER = "keras.src.trainers.data_adapters.py_dataset_adapter:PyDatasetAdapter"
_MIDDLE = "begin an epoch of fit in its middle"
POSITION = (
    Hook("keras.src.trainers.epoch_iterator:EpochIterator._num_batches", _MIDDLE, is_set),
    Hook(f"{_ADAPTER}.on_epoch_begin", _MIDDLE, named_in(_EPOCH)),
    Hook(f"{_ADAPTER}.shuffle", "keep the order of samples", is_set),
    Hook(f"{_ADAPTER}.on_epoch_end", "keep the order of samples", exists),
    Hook("keras.src.trainers.trainer:Trainer._initial_epoch", _MIDDLE, is_set),
    Hook("keras.src.backend.common.global_state:get_global_attribute", "save random numbers", takes("name")),
    Hook("tensorflow.python.ops.stateful_random_ops:global_generator", "save random numbers", exists),
    Hook("tensorflow.python.eager.context:Context._internal_operation_seed", "save random numbers", exists),
)
_TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer."
_STEPS = "record the steps of a rehearsal"
# `rehearse`.
FINGERPRINTS = (
    Hook(f"{_TRAINER}make_train_function", _STEPS, named_in(f"{_TRAINER}fit")),
    Hook(f"{_TRAINER}_make_function", _STEPS, named_in(f"{_TRAINER}make_train_function")),
    Hook("keras.src.backend.common.global_state:get_global_attribute", _STEPS, takes("name")),
    Hook("tensorflow.python.ops.stateful_random_ops:global_generator", _STEPS, exists),
)
