"""The model and the optimizer of SMP version 1 as parts of a training: each rank saves and loads what is its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint.reading import Reader
from herringbone_parallel.torch.model_parallel import state
from herringbone_parallel.torch.model_parallel.checkpoint import own_parts, resume
from herringbone_parallel.torch.model_parallel.model import DistributedModel
from herringbone_parallel.torch.model_parallel.optimizer import DistributedOptimizer


class PipelineParts:
    """The `DistributedModel` and its `DistributedOptimizer` among the parts; raises `ParallelError` for other ones."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        models = {name: part for name, part in parts.items() if isinstance(part, DistributedModel)}
        optimizers = {name: part for name, part in parts.items() if isinstance(part, DistributedOptimizer)}
        if len(models) != 1 or len(optimizers) > 1:
            raise ParallelError(
                f"Training has {len(models)} smp.DistributedModel and {len(optimizers)} smp.DistributedOptimizer: give"
                " the model, and at most one optimizer"
            )
        [(self._model_name, self._model)] = models.items()
        self._optimizer: DistributedOptimizer | None
        self._optimizer_name, self._optimizer = next(iter(optimizers.items()), ("", None))
        self.names = {*models, *optimizers}

    def check_loader(self, name: str, replicas: int) -> None:
        """Raise `ParallelError` for an order that is divided among more than the replicas of the pipeline.

        The first rank's batches count in a pipeline: what is divided among its other ranks is lost.
        """
        ranks = state.ranks
        if replicas not in (0, ranks.dp_size(), ranks.rdp_size()):
            raise ParallelError(
                f"the loader {name!r} is divided among {replicas} ranks, and there are {ranks.dp_size()} replicas,"
                " whose ranks share their batches: give DistributedSampler(dataset, num_replicas=smp.dp_size(),"
                " rank=smp.dp_rank())"
            )

    def state(self) -> dict[str, Any]:
        """Return the state of this rank. Raises `ParallelError` before the model is divided."""
        if not self._model.partitioned:
            raise ParallelError("a save before the first step: the model is not partitioned yet. Run a step first")
        entries = {self._model_name: own_parts.model_state(self._model)}
        if self._optimizer is not None:
            entries[self._optimizer_name] = own_parts.optimizer_state(self._optimizer, self._model)
        return entries

    def mesh(self) -> dict[str, int]:
        """Return the degrees of parallelism."""
        return state.get().grid.mesh._asdict()

    def read(self, reader: Reader) -> resume.Checkpoint:
        """Return what this rank needs of a checkpoint; raises `ParallelError` if it is of another model."""
        content = resume.read_new_form(reader, self._model, self._optimizer_name, self._model_name)
        resume.check_model(self._model, content.model, strict=True)
        if self._optimizer is not None:
            self._optimizer.check(content.optimizer)
        return content

    def load(self, content: resume.Checkpoint) -> None:
        """Go on from a checkpoint, before or after the model is divided; every rank must call."""
        self._model.load_state_dict(content.model)
        if self._optimizer is not None:
            self._optimizer.load_state_dict(content.optimizer)
