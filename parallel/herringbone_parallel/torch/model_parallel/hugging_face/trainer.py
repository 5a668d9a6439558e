"""Serves Hugging Face's `Trainer`, whose branch for SMP v1 no longer fits the rest of it.

The rank's import hook calls `serve` with `transformers.training_args` and `transformers.trainer` as soon as the script
has imported them. Scripts stay as they are. Five places are changed; all else of the branch runs on `smp`'s own names:

    [1] the device      `TrainingArguments._setup_devices` needs a GPU; without one it has no device to return
    [2] the batches     `Accelerator` counts every rank, so the ranks of one pipeline would read different batches;
                        and of one replica, microbatches may not divide the last batch
    [3] the wrapper     transformers 5 makes no optimizer for a wrapped model, and wraps the model twice to evaluate it
    [4] the files       transformers 5 writes the model's file on every rank at the same time
    [5] the tokens      a loss is an average over the tokens of the whole batch; the branch averages the averages of
                        microbatches, which are others if labels are padded

Read in the sources of transformers 4.57 and 5.23, and accelerate 1.15.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import BatchSampler

from herringbone_contract.errors import ParallelError
from herringbone_contract.library_hooks import require
from herringbone_parallel.core.groups import CommGroup
from herringbone_parallel.torch import hugging_face_hooks
from herringbone_parallel.torch.model_parallel import communication, state
from herringbone_parallel.torch.model_parallel.model import DistributedModel
from herringbone_parallel.torch.model_parallel.optimizer import DistributedOptimizer


def serve(module: ModuleType) -> None:
    """Change a module of transformers that the script has just imported."""
    if not module.is_sagemaker_mp_enabled():
        return
    if module.__name__ == "transformers.training_args":
        require(hugging_face_hooks.MODEL_PARALLEL_ARGUMENTS)
        _serve_arguments(module.TrainingArguments)
    else:
        require(hugging_face_hooks.MODEL_PARALLEL_TRAINER)
        module.__dict__["Accelerator"] = accelerator_class(module.Accelerator)
        _serve_trainer(module.Trainer)


def _serve_arguments(arguments: Any) -> None:
    from accelerate.state import AcceleratorState

    # [1]
    def setup_devices(self: Any) -> torch.device:
        AcceleratorState._reset_state(reset_partial_state=True)
        # None, so that the number of processes is `smp.dp_size()`, and not that of all ranks.
        self.distributed_state = None
        device = state.get().device
        self._n_gpu = int(device.type == "cuda")
        return device

    arguments._setup_devices = functools.cached_property(setup_devices)
    arguments._setup_devices.__set_name__(arguments, "_setup_devices")


def accelerator_class(base: Any) -> Any:
    """Return the subclass of accelerate's `Accelerator` that counts replicas of the model in place of ranks."""
    from accelerate.utils import recursively_apply

    # [2]
    class ReplicaAccelerator(base):  # type: ignore[misc]  # the base class is known at run time only
        """An `Accelerator` whose processes are the replicas of the model, each of which may be several ranks."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            _count_replicas()
            super().__init__(*args, **kwargs)

        def prepare_data_loader(self, data_loader: Any, *args: Any, **kwargs: Any) -> Any:
            fill_last_batch(data_loader, state.get().settings.microbatches)
            return super().prepare_data_loader(data_loader, *args, **kwargs)

        def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
            # accelerate's wrapper has none of the methods that the Trainer calls to save the optimizer.
            if not isinstance(optimizer, DistributedOptimizer):
                return super().prepare_optimizer(optimizer, device_placement)
            if optimizer not in self._optimizers:
                self._optimizers.append(optimizer)
            return optimizer

        @property
        def optimizer_step_was_skipped(self) -> bool:
            return any(getattr(optimizer, "overflow", False) for optimizer in self._optimizers)

        def gather(self, tensor: Any) -> Any:
            return recursively_apply(_gather, tensor, error_on_other_type=True)

        def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
            if use_gather_object:
                raise ParallelError(
                    "eval_use_gather_object is not available with smdistributed.modelparallel: have the model return"
                    " tensors, and leave the setting out"
                )
            return super().gather_for_metrics(input_data)

        def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
            def pad(value: torch.Tensor) -> torch.Tensor:
                return _pad(value, dim, pad_index, first=pad_first)

            return recursively_apply(pad, tensor, error_on_other_type=True)

        def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
            def reduced(value: torch.Tensor) -> torch.Tensor:
                total = torch.stack(_of_replicas(value)).sum(0)
                return (total / _readers()[0] if reduction == "mean" else total) * scale

            return recursively_apply(reduced, tensor, error_on_other_type=True)

    return ReplicaAccelerator


class FullBatches(BatchSampler):
    """Batches whose last one is filled up with the first rows, to a multiple of the microbatches.

    >>> list(FullBatches(range(7), 4, 2))
    [[0, 1, 2, 3], [4, 5, 6, 0]]
    """

    def __init__(self, sampler: Any, batch_size: int, microbatches: int) -> None:
        super().__init__(sampler, batch_size, drop_last=False)
        self._microbatches = microbatches

    def __iter__(self) -> Iterator[list[int]]:
        first: list[int] = []
        for batch in super().__iter__():
            first = first or batch
            missing = -len(batch) % self._microbatches
            # The first batch itself may have fewer rows than are missing.
            yield batch + [first[number % len(first)] for number in range(missing)]


def fill_last_batch(data_loader: Any, microbatches: int) -> None:
    """Have a loader fill up its last batch, which the microbatches may not divide; accelerate does so for replicas."""
    sampler = data_loader.batch_sampler
    if type(sampler) is BatchSampler and not sampler.drop_last and sampler.batch_size % microbatches == 0:
        # torch guards the attribute against loaders that run already; accelerate copies this one before it runs.
        data_loader.__dict__["batch_sampler"] = FullBatches(sampler.sampler, sampler.batch_size, microbatches)


def _count_replicas() -> None:
    """Tell accelerate of the replicas. They are not "distributed" for it, because its default group has all ranks."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    shared = PartialState(cpu=state.get().device.type == "cpu")
    shared.distributed_type = DistributedType.NO
    shared.num_processes, shared.process_index = _readers()


def _readers() -> tuple[int, int]:
    """Return the number of ranks that read different batches, and the index of this one, as the Trainer counts them."""
    if state.get().settings.prescaled_batch:
        return state.ranks.rdp_size(), state.ranks.rdp_rank()
    return state.ranks.dp_size(), state.ranks.dp_rank()


def _of_replicas(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of all replicas, on this rank's device; every rank must call it."""
    if _readers()[0] == 1:
        return [tensor]
    group = CommGroup.RDP_GROUP if state.get().settings.prescaled_batch else CommGroup.DP_GROUP
    gathered = communication.allgather(tensor.detach().cpu(), group)
    return [other.to(tensor.device) for other in gathered]


def _gather(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat(_of_replicas(tensor if tensor.dim() else tensor[None]))


def _pad(tensor: torch.Tensor, dim: int, value: int, *, first: bool) -> torch.Tensor:
    """Pad one axis of a tensor to its greatest length on any replica."""
    if not -tensor.dim() <= dim < tensor.dim():
        return tensor
    length = tensor.shape[dim]
    missing = int(max(_of_replicas(torch.tensor(length)))) - length
    shape = list(tensor.shape)
    shape[dim] = missing
    padding = tensor.new_full(shape, value)
    return torch.cat([padding, tensor] if first else [tensor, padding], dim)


def require_loss_of_model(instance: Any, trainer: type) -> None:
    """Raise `ParallelError` for settings of the loss that the Trainer's branch would ignore."""
    ignored = [
        name
        for name, is_set in (
            ("label_smoothing_factor", getattr(instance, "label_smoother", None) is not None),
            ("compute_loss_func", getattr(instance, "compute_loss_func", None) is not None),
            ("a compute_loss of your own", type(instance).compute_loss is not trainer.compute_loss),  # type: ignore[attr-defined]
        )
        if is_set
    ]
    if ignored:
        raise ParallelError(
            f"{', '.join(ignored)}: with smdistributed.modelparallel the Trainer takes the loss that the model returns,"
            " and would ignore it. Compute the loss in the model's forward, or train under torch_distributed"
        )


def counted(trainer: Any, inputs: Any, tokens: Any, steps: int) -> Any:
    """Return a model's inputs with the number by which it divides a microbatch's sum of losses over tokens.

    It is such that the mean over the microbatches, divided by the number of `steps` of an accumulation, is what the
    Trainer's `compute_loss` returns for the whole batch: the sum over it, divided by the number of `tokens`.
    """
    if tokens is None or not trainer.model_accepts_loss_kwargs:
        return inputs
    parts = state.get().settings.microbatches * steps
    if trainer.args.average_tokens_across_devices:
        parts *= trainer.accelerator.num_processes
    return {**inputs, "num_items_in_batch": float(tokens) / parts}


def _serve_trainer(trainer: Any) -> None:
    save, training_step, prediction_step = trainer._save, trainer.training_step, trainer.prediction_step
    # transformers 5 has split this method off, and with it lost the optimizer of a wrapped model.
    creates_no_optimizer = hasattr(trainer, "_prepare_for_training")

    # [3]
    def wrap_model(self: Any, model: Any, training: bool = True, dataloader: Any = None) -> Any:  # noqa: ARG001
        if isinstance(self.model_wrapped, DistributedModel):
            return self.model_wrapped
        require_loss_of_model(self, trainer)
        # Not `backward_passes_per_step`: at the end of an epoch the Trainer updates after fewer passes, whose gradients
        # would not be averaged.
        wrapped = DistributedModel(model)
        if training and creates_no_optimizer:
            # The Trainer assigns it only after it has prepared the optimizer.
            self.model_wrapped = wrapped
            self.create_optimizer()
        return wrapped

    # [4]
    def save_on_first_rank(self: Any, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self.args.should_save:
            save(self, output_dir, state_dict=state_dict)

    # [5]
    def counted_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        steps = self.args.gradient_accumulation_steps
        return training_step(self, model, counted(self, inputs, num_items_in_batch, steps), num_items_in_batch)

    def counted_prediction(self: Any, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        tokens = self._get_num_items_in_batch([inputs], self.args.device)
        return prediction_step(self, model, counted(self, inputs, tokens, 1), *args, **options)

    trainer._wrap_model, trainer._save = wrap_model, save_on_first_rank
    trainer.training_step, trainer.prediction_step = counted_step, counted_prediction
