"""The hooks into accelerate, transformers and Lightning, with a probe of each (`herringbone_contract.library_hooks`).

Each list is of one module of ours, which requires it after the script has imported the library. No probe runs a model.
"""

from __future__ import annotations

from herringbone_contract.library_hooks import Hook, exists, is_set, named_in, takes

_PREPARE = named_in("accelerate.accelerator:Accelerator.prepare")
_MESH = "accelerate.parallelism_config:ParallelismConfig."
_CLASS = "accelerate.accelerator:Accelerator."
_UTILS, _SHARED = "accelerate.utils.fsdp_utils:", "shard models whose modules share parameters"
_COPIES = "replicate models of which only layers are split"
# accelerate, in a job whose keys split the model.
ACCELERATE = (
    Hook(f"{_MESH}__post_init__", _COPIES, exists),
    Hook(f"{_MESH}dp_shard_enabled", _COPIES, named_in(f"{_MESH}dp_shard_cp_dim_names")),
    Hook("accelerate.state:AcceleratorState.__init__", "shard on CPUs", takes("fsdp_plugin")),
    Hook("accelerate.accelerator:Accelerator._prepare_tp", "split layers between ranks", _PREPARE),
    Hook("accelerate.accelerator:Accelerator._prepare_cp", "share sequences between ranks", _PREPARE),
    Hook("accelerate.accelerator:Accelerator._prepare_fsdp2", "split a model before it is sharded", _PREPARE),
    Hook(
        "accelerate.accelerator:fsdp2_prepare_model",
        _SHARED,
        named_in("accelerate.accelerator:Accelerator._prepare_fsdp2"),
    ),
    Hook(f"{_UTILS}fsdp2_prepare_auto_wrap_policy", _SHARED, named_in(f"{_UTILS}fsdp2_prepare_model")),
    Hook(f"{_UTILS}_get_model_state_dict", "write a shared parameter once", named_in(f"{_UTILS}save_fsdp_model")),
)

_TRAINER = "transformers.trainer:Trainer."
_ARGUMENTS = "transformers.training_args:TrainingArguments."
_DEVICE = named_in(f"{_ARGUMENTS}device")
_CREATES = named_in(f"{_TRAINER}create_accelerator_and_postprocess")
_LOSS = ("model", "inputs", "return_outputs", "num_items_in_batch")
_AVERAGE = "average losses over the tokens of a batch"
# The Trainer, in such a job.
CONTEXT_TRAINER = (
    Hook(f"{_TRAINER}compute_loss", "divide the loss of a shared sequence", takes(*_LOSS)),
    Hook(f"{_TRAINER}_get_num_items_in_batch", "count a rank's tokens whole", named_in(f"{_TRAINER}get_batch_samples")),
)
# Its branch for smdistributed.dataparallel.
DATA_PARALLEL_ARGUMENTS = (
    Hook(f"{_ARGUMENTS}parallel_mode", "average losses over the ranks", named_in(f"{_ARGUMENTS}_setup_devices")),
    Hook(f"{_ARGUMENTS}_setup_devices", "open the process group without a GPU", _DEVICE),
)
# Its branch for version 1 of smdistributed.modelparallel.
MODEL_PARALLEL_ARGUMENTS = (Hook(f"{_ARGUMENTS}_setup_devices", "choose the rank's device", _DEVICE),)
MODEL_PARALLEL_TRAINER = (
    Hook("transformers.trainer:Accelerator", "count replicas in place of ranks", _CREATES),
    Hook(f"{_TRAINER}_wrap_model", "train the partitioned model", named_in(f"{_TRAINER}evaluation_loop")),
    Hook(f"{_TRAINER}_save", "write a model's file once", named_in(f"{_TRAINER}save_model")),
    Hook(f"{_TRAINER}training_step", _AVERAGE, takes("model", "inputs", "num_items_in_batch")),
    Hook(f"{_TRAINER}prediction_step", _AVERAGE, takes("model", "inputs")),
    Hook(f"{_TRAINER}_get_num_items_in_batch", _AVERAGE, named_in(f"{_TRAINER}prediction_step")),
)
_LOADER = "accelerate.data_loader:"
_STATES = "accelerate.checkpointing:"
_ENTERS = "go on in the middle of an epoch"
# The place in the data, in any job.
POSITION_LOADERS = (
    Hook(f"{_LOADER}prepare_data_loader", _ENTERS, takes("dataloader", "device", "num_processes")),
    Hook(f"{_LOADER}skip_first_batches", _ENTERS, takes("dataloader", "num_batches")),
    Hook(f"{_LOADER}DataLoaderShard.__iter__", _ENTERS, exists),
    Hook(f"{_LOADER}BatchSamplerShard.__iter__", "divide what is left of an epoch", exists),
)
POSITION_OPTIMIZERS = (
    Hook("accelerate.optimizer:AcceleratedOptimizer.step", "count complete steps", takes("self", "closure")),
)
POSITION_CHECKPOINTS = (
    Hook(f"{_STATES}save_accelerator_state", _ENTERS, takes("output_dir", "dataloaders", "process_index")),
    Hook(f"{_STATES}load_accelerator_state", _ENTERS, takes("input_dir", "dataloaders", "process_index")),
)
POSITION_TRAINER = (
    Hook(f"{_TRAINER}_save_rng_state", _ENTERS, named_in(f"{_TRAINER}_save_checkpoint")),
    Hook(f"{_TRAINER}_load_optimizer_and_scheduler", _ENTERS, takes("self", "checkpoint")),
    Hook(f"{_TRAINER}_load_rng_state", _ENTERS, takes("self", "checkpoint")),
    Hook(f"{_TRAINER}_save_checkpoint", "let a checkpoint be complete or none", takes("self", "model", "trial")),
)
POSITION_LOOKUPS = (
    Hook(
        "transformers.trainer_utils:get_last_checkpoint", "pass over a checkpoint whose save was cut", takes("folder")
    ),
)
_LOOP = "lightning.pytorch.loops.fit_loop:_FitLoop."
_CONNECTOR = "lightning.pytorch.trainer.connectors.checkpoint_connector:_CheckpointConnector."
_EPOCH_LOOP = "lightning.pytorch.loops.training_epoch_loop:_TrainingEpochLoop."
_SAVER, _STOPS = "lightning.pytorch.callbacks.model_checkpoint:ModelCheckpoint.", "save when the job is asked to go"
_SIGNALS = "lightning.pytorch.trainer.connectors.signal_connector:_SignalConnector."
_SAVES = named_in("lightning.pytorch.trainer.trainer:Trainer.save_checkpoint")
# Lightning's Trainer, in any job.
POSITION_LIGHTNING = (
    Hook(f"{_LOOP}_load_combined_loader_states", _ENTERS, named_in(f"{_LOOP}setup_data")),
    Hook(f"{_CONNECTOR}dump_checkpoint", _ENTERS, _SAVES),
    Hook(f"{_CONNECTOR}restore_loops", _ENTERS, named_in(f"{_CONNECTOR}restore_training_state")),
    Hook(f"{_EPOCH_LOOP}on_advance_end", _STOPS, named_in(f"{_EPOCH_LOOP}run")),
    Hook(f"{_EPOCH_LOOP}_should_accumulate", _STOPS, exists),
    Hook(f"{_EPOCH_LOOP}_should_check_val_fx", _STOPS, exists),
    Hook(f"{_SAVER}_save_last_checkpoint", _STOPS, named_in(f"{_SAVER}on_validation_end")),
    Hook(f"{_SAVER}_save_none_monitor_checkpoint", _STOPS, named_in(f"{_SAVER}_save_topk_checkpoint")),
    Hook(f"{_SAVER}_monitor_candidates", _STOPS, named_in(f"{_SAVER}on_validation_end")),
    Hook(f"{_SIGNALS}_original_handlers", _STOPS, is_set),
)
