"""`smp.save_checkpoint` and `smp.resume_from_checkpoint`: model, optimizer and what the user adds, by tag."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import CommGroup
from herringbone_parallel.torch.model_parallel import communication, optimizer_state, ranks, state
from herringbone_parallel.torch.model_parallel.checkpoint.folder import CheckpointFolder
from herringbone_parallel.torch.model_parallel.checkpoint.save_load import read_whole, write_whole
from herringbone_parallel.torch.model_parallel.model import DistributedModel
from herringbone_parallel.torch.model_parallel.optimizer import DistributedOptimizer
from herringbone_parallel.torch.model_parallel.optimizer_state import PARTIAL_KEY

Result = TypeVar("Result")


def save_checkpoint(
    path: str | os.PathLike[str],
    tag: str,
    partial: bool = True,
    model: DistributedModel | None = None,
    optimizer: DistributedOptimizer | None = None,
    user_content: Any = None,
    translate_if_full: bool = True,  # noqa: ARG001  SMP v1's signature; see the docstring
    num_kept_partial_checkpoints: int | None = None,
) -> None:
    """Save the model, the optimizer and `user_content` in the folder `path`; every rank calls it.

        smp.save_checkpoint("/opt/ml/checkpoints", tag=f"step{step}", model=model, optimizer=optimizer,
                            user_content={"step": step}, num_kept_partial_checkpoints=3)

    A partial checkpoint is fast, and can be resumed on another number of partitions; a full one (`partial=False`) is
    `{"model": ..., "optimizer": ...}` in one file, for torch without this library. Files appear whole or not at all,
    `newest` is updated last, and only then do older partial checkpoints than the newest `num_kept_partial_checkpoints`
    go. `translate_if_full` has nothing to translate: names are always those of the user's own model.
    Source: SMP v1, `smp.save_checkpoint`.
    """
    here = state.get()
    folder = CheckpointFolder(path)
    folder.full(tag)
    _check_saved(model, partial, num_kept_partial_checkpoints)
    # One process per host makes and removes folders; the hosts may share them or not.
    controller = here.local_rank == 0
    if controller:
        (folder.partial(tag) if partial else folder.path).mkdir(parents=True, exist_ok=True)
    communication.barrier()
    parts = {kind: part for kind, part in (("model", model), ("optimizer", optimizer)) if part is not None}
    if partial:
        save = communication.allgather(secrets.token_hex(8), CommGroup.WORLD)[0]
        if ranks.rdp_rank() == 0:
            for kind, part in parts.items():
                target = folder.part(tag, kind, ranks.pp_rank(), ranks.tp_rank())
                content = part.local_state_dict()
                write_whole(target, {"save": save, "partitions": here.settings.partitions, "content": content})
    else:
        content = {kind: part.state_dict() for kind, part in parts.items()}
        if here.rank == 0:
            write_whole(folder.full(tag), content)
    if here.rank == 0:
        write_whole(folder.user_content(tag, partial), user_content)
    communication.barrier()
    if controller:
        if partial:
            folder.remove_stale(tag, parts, here.settings.partitions)
        folder.note_newest(tag, partial)
        if num_kept_partial_checkpoints is not None:
            folder.prune(num_kept_partial_checkpoints)
    communication.barrier()


def resume_from_checkpoint(
    path: str | os.PathLike[str],
    tag: str | None = None,
    partial: bool = True,
    strict: bool = True,
    load_optimizer: bool = True,
    load_sharded_optimizer_state: bool = True,
    translate_function: Callable[[Any], Any] | None = None,
) -> Any:
    """Load what `save_checkpoint` wrote into the script's model and optimizer, and return the `user_content`.

        user_content = smp.resume_from_checkpoint("/opt/ml/checkpoints")            # the newest partial one
        smp.resume_from_checkpoint("pretrained", tag="model.pt", partial=False, load_optimizer=False)

    Every rank calls it, after `DistributedModel` and `DistributedOptimizer`, before or after the first step. A full
    checkpoint may also be a plain state dict of the model; `translate_function` changes a full one's into the
    model's. `user_content` is unpickled: resume from folders that you trust.

    Raises `ParallelError` on every rank, before anything is changed, when files are missing, damaged or of another
    model. Source: SMP v1, `smp.resume_from_checkpoint`.
    """
    if not load_sharded_optimizer_state:
        raise ParallelError("load_sharded_optimizer_state=False: optimizer states are not sharded in this release")
    if partial and translate_function is not None:
        raise ParallelError("translate_function is for full checkpoints; a partial one has the model's own names")
    model = state.get().model
    if model is None:
        raise ParallelError("make the smp.DistributedModel before resuming")
    optimizer = _only_optimizer() if load_optimizer else None
    folder = CheckpointFolder(path)

    def read() -> tuple[Any, Any, Any]:
        chosen = folder.newest_tag(partial) if tag is None else tag
        weights, moments = _read(folder, chosen, partial, optimizer is not None)
        weights = weights if translate_function is None else translate_function(weights)
        _check_model(model, weights, strict)
        if optimizer is not None:
            optimizer.check(moments)
        extra = folder.user_content(chosen, partial)
        # A full one may be any file of weights that the user brought.
        content = read_whole(extra, map_location="cpu", weights_only=False) if partial or extra.exists() else None
        return weights, moments, content

    weights, moments, content = _on_every_rank(read)
    model.load_state_dict(weights, strict=strict)
    if optimizer is not None:
        optimizer.load_state_dict(moments)
    return content


def _check_saved(model: DistributedModel | None, partial: bool, kept: int | None) -> None:
    if partial and model is not None and not model.partitioned:
        raise ParallelError(
            "a partial checkpoint before the first step: the model is not partitioned yet."
            " Run a step, or pass partial=False"
        )
    if kept is not None and not partial:
        raise ParallelError("num_kept_partial_checkpoints is for partial checkpoints; full ones are never removed")
    if kept is not None and (isinstance(kept, bool) or not isinstance(kept, int) or kept < 1):
        raise ParallelError(f"num_kept_partial_checkpoints is a number from 1, or None to keep all; not {kept!r}")


def _only_optimizer() -> DistributedOptimizer:
    optimizers = state.get().optimizers
    if len(optimizers) != 1:
        raise ParallelError(
            f"there are {len(optimizers)} smp.DistributedOptimizer to resume; a checkpoint has the state of one."
            " Pass load_optimizer=False, or make one before resuming"
        )
    return optimizers[0]


def _read(folder: CheckpointFolder, tag: str, partial: bool, with_optimizer: bool) -> tuple[Any, Any]:
    if partial:
        parts, *moments = folder.read_parts(tag, ("model", "optimizer") if with_optimizer else ("model",))
        weights = {name: value for part in reversed(parts) for name, value in part.items() if name != PARTIAL_KEY}
        return weights, optimizer_state.join(moments[0]) if with_optimizer else None
    content = read_whole(folder.full(tag), map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(content, Mapping) or "model" not in content or not isinstance(content["model"], Mapping):
        content = {"model": content}
    if with_optimizer and "optimizer" not in content:
        raise ParallelError(f"{folder.full(tag)} has no optimizer state; pass load_optimizer=False")
    return content["model"], content.get("optimizer")


def _check_model(model: DistributedModel, weights: Any, strict: bool) -> None:
    """Raise `ParallelError` when names (if `strict`) or shapes are not those of the model."""
    expected = model.module.state_dict()
    if not isinstance(weights, Mapping):
        raise ParallelError(f"the checkpoint is no state dict but a {type(weights).__qualname__}")
    if strict and set(expected) != set(weights):
        raise ParallelError(
            f"the checkpoint is of another model: missing {sorted(set(expected) - set(weights))[:5]},"
            f" unexpected {sorted(set(weights) - set(expected))[:5]}"
        )
    for name, value in expected.items():
        saved = weights.get(name)
        if isinstance(value, torch.Tensor) and saved is not None and value.shape != saved.shape:
            raise ParallelError(
                f"the checkpoint is of another model: {name!r} has shape {list(saved.shape)}, the model's"
                f" {list(value.shape)}"
            )


def _on_every_rank(read: Callable[[], Result]) -> Result:
    """Return what `read` returned here, or raise on all ranks when it failed on one."""
    failure = None
    try:
        found = read()
    except Exception as error:  # noqa: BLE001  raised below, when the others know
        failure = error
    failures = communication.allgather(None if failure is None else str(failure), CommGroup.WORLD)
    if failure is not None:
        raise failure
    for rank, text in enumerate(failures):
        if text is not None:
            raise ParallelError(f"rank {rank} cannot resume: {text}")
    return found
