"""`smp.save_checkpoint` and `smp.resume_from_checkpoint`: model, optimizer and the user's content, by tag."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import CommGroup
from herringbone_parallel.job_folders import checkpoint_dir
from herringbone_parallel.torch.checkpoint import api as shared_form
from herringbone_parallel.torch.checkpoint.reading import pass_over
from herringbone_parallel.torch.checkpoint.states import nest
from herringbone_parallel.torch.model_parallel import communication, local_parts, optimizer_state, state
from herringbone_parallel.torch.model_parallel.checkpoint import own_parts
from herringbone_parallel.torch.model_parallel.checkpoint.folder import CheckpointFolder
from herringbone_parallel.torch.model_parallel.checkpoint.pretrained import read_safetensors, safetensors_of
from herringbone_parallel.torch.model_parallel.checkpoint.save_load import read_whole, write_whole
from herringbone_parallel.torch.model_parallel.model import DistributedModel
from herringbone_parallel.torch.model_parallel.optimizer import DistributedOptimizer
from herringbone_parallel.torch.model_parallel.optimizer_state import PARTIAL_KEY

Result = TypeVar("Result")


class Checkpoint(NamedTuple):
    """The content of a checkpoint; `optimizer` is None if it was not read."""

    model: Any
    optimizer: Any
    user_content: Any = None
    # The same on all ranks that have read the same checkpoint.
    save: str = ""


def save_checkpoint(
    path: str | os.PathLike[str] | None = None,
    tag: str = "",
    partial: bool = True,
    model: DistributedModel | None = None,
    optimizer: DistributedOptimizer | None = None,
    user_content: Any = None,
    translate_if_full: bool = True,  # noqa: ARG001  SMP v1's signature; see the docstring
    num_kept_partial_checkpoints: int | None = None,
) -> None:
    """Save the model, the optimizer and `user_content` in the folder `path`; every rank must call it.

        smp.save_checkpoint(tag=f"step{step}", model=model, optimizer=optimizer,
                            user_content={"step": step}, num_kept_partial_checkpoints=3)

    `path` is by default the job's folder of checkpoints, `SM_CHECKPOINT_DIR`; `tag` is required.
    A partial checkpoint is fast, and another number of partitions can resume from it; `async_save_checkpoint` writes it
    in the background. A full one (`partial=False`) is `{"model": ..., "optimizer": ...}` in one file, for torch without
    this library. A checkpoint appears completely or not at all, and `newest` is updated last. Only then are partial
    checkpoints removed, except the newest `num_kept_partial_checkpoints`. `translate_if_full` has no effect: names are
    always those of the user's own model.
    Source: SMP v1, `smp.save_checkpoint`.
    """
    library = state.get()
    folder = CheckpointFolder(checkpoint_dir() if path is None else path)
    # Before anything is written: raises for a tag that cannot be a file name.
    folder.full(tag)
    _check_saved(model, partial, num_kept_partial_checkpoints)
    parts = {kind: part for kind, part in (("model", model), ("optimizer", optimizer)) if part is not None}
    if partial:
        _save_partial(shared_form.save, folder, tag, parts, user_content, num_kept_partial_checkpoints)
        return
    # One process per host makes folders, because hosts may or may not share them.
    manages_folder = library.local_rank == 0
    if manages_folder:
        folder.path.mkdir(parents=True, exist_ok=True)
    communication.barrier()
    content = {kind: part.state_dict() for kind, part in parts.items()}
    if library.rank == 0:
        write_whole(folder.full(tag), content)
        write_whole(folder.user_content(tag, partial=False), user_content)
    # `newest` must not name a checkpoint whose files are not all written.
    communication.barrier()
    if manages_folder:
        folder.note_newest(tag, partial=False)
    communication.barrier()


def async_save_checkpoint(
    path: str | os.PathLike[str] | None = None,
    tag: str = "",
    model: DistributedModel | None = None,
    optimizer: DistributedOptimizer | None = None,
    user_content: Any = None,
    num_kept_partial_checkpoints: int | None = None,
) -> None:
    """Save a partial checkpoint in the background; every rank must call it.

        smp.async_save_checkpoint(tag=f"step{step}", model=model, optimizer=optimizer, user_content={"step": step})

    The call copies what this rank writes to the CPU, and returns. The arguments are those of `save_checkpoint`. The
    next save, a resume and the end of the script wait until it is written, and raise its error.
    Source: this library's own.
    """
    folder = CheckpointFolder(checkpoint_dir() if path is None else path)
    _check_saved(model, True, num_kept_partial_checkpoints)
    parts = {kind: part for kind, part in (("model", model), ("optimizer", optimizer)) if part is not None}
    _save_partial(shared_form.async_save, folder, tag, parts, user_content, num_kept_partial_checkpoints)


def resume_from_checkpoint(
    path: str | os.PathLike[str] | None = None,
    tag: str | None = None,
    partial: bool = True,
    strict: bool = True,
    load_optimizer: bool = True,
    load_sharded_optimizer_state: bool = True,
    translate_function: Callable[[Any], Any] | None = None,
) -> Any:
    """Load a checkpoint of `save_checkpoint` into the script's model and optimizer, and return its `user_content`.

        user_content = smp.resume_from_checkpoint()            # the newest partial one in SM_CHECKPOINT_DIR
        smp.resume_from_checkpoint("pretrained", tag="model.pt", partial=False, load_optimizer=False)

    Every rank must call it, after `DistributedModel` and `DistributedOptimizer`, before or after the first step. A full
    checkpoint may also be a plain state dict of the model. Where Hugging Face's Trainer has written
    `model.safetensors`, the tag `pytorch_model.bin` reads that. `translate_function` turns the content into a state
    dict of the model. `user_content` is unpickled: resume only from folders that you trust.

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
    assert isinstance(model, DistributedModel)
    optimizer = _only_optimizer() if load_optimizer else None
    folder = CheckpointFolder(checkpoint_dir() if path is None else path)
    # A save in the background may be the one to resume from.
    shared_form.finalize()

    def read(passed: Mapping[str, str]) -> Checkpoint:
        resumed_tag = folder.newest_tag(partial) if tag is None else tag
        reader = folder.reader(resumed_tag, tag is None, passed) if partial else None
        safe = None if partial else safetensors_of(folder.full(resumed_tag))
        if reader is not None:
            content = read_new_form(reader, model, "" if optimizer is None else "optimizer")
        elif safe is not None and optimizer is None:
            content = Checkpoint(read_safetensors(safe, model.module), None)
        else:
            content = _read(folder, resumed_tag, partial, optimizer is not None)
        if translate_function is not None:
            content = content._replace(model=translate_function(content.model))
        check_model(model, content.model, strict)
        if optimizer is not None:
            optimizer.check(content.optimizer)
        if reader is not None:
            return content._replace(
                user_content=reader.user_content(), save=f"{reader.path.name} ({reader.manifest.save})"
            )
        content = content._replace(save=resumed_tag)
        extra = folder.user_content(resumed_tag, partial)
        # A full checkpoint may be any file of weights, without content of `save_checkpoint` next to it.
        if partial or extra.exists():
            content = content._replace(user_content=read_whole(extra, map_location="cpu", weights_only=False))
        return content

    checkpoint = _newest_on_every_rank(read) if tag is None else _on_every_rank(lambda: read({}))
    saves = sorted(set(communication.allgather(checkpoint.save, CommGroup.WORLD)))
    if len(saves) > 1:
        # Such as hosts with folders of their own, of which some lack the newest checkpoint.
        raise ParallelError(
            f"the ranks have found different checkpoints in {folder.path}: {', '.join(saves)}. Bring the files of all"
            " hosts into one folder, or give the `tag` of a checkpoint that all of them have"
        )
    model.load_state_dict(checkpoint.model, strict=strict)
    if optimizer is not None:
        optimizer.load_state_dict(checkpoint.optimizer)
    return checkpoint.user_content


def _save_partial(
    save: Callable[..., Any],
    folder: CheckpointFolder,
    tag: str,
    parts: Mapping[str, Any],
    user_content: Any,
    kept: int | None,
) -> None:
    grid = state.get().grid
    model = state.get().model
    assert isinstance(model, DistributedModel)
    local = {
        kind: own_parts.model_state(model) if kind == "model" else own_parts.optimizer_state(part, model)
        for kind, part in parts.items()
    }
    save(
        folder.path,
        folder.partial(tag).name,
        local,
        contents=shared_form.Contents(mesh=grid.mesh._asdict(), user_content=user_content),
        on_complete=None if kept is None else lambda: folder.prune(kept),
    )


def read_new_form(
    reader: shared_form.Reader, model: DistributedModel, optimizer: str = "", name_of_model: str = "model"
) -> Checkpoint:
    """Read everything before the partition, and what this rank needs after it; tensors of other ranks are on `meta`.

    The optimizer is read if its name in the checkpoint is given.
    """
    known = local_parts.state_dict(model.module)
    needed = set(local_parts.with_data(known) if model.partitioned else known)
    weights = {
        keys[1]: value for name, value in reader.values().items() if (keys := reader.split(name))[0] == name_of_model
    }
    entries: dict[str, dict[str, Any]] = {}
    for name in reader.names:
        keys = reader.split(name)
        if keys[0] == name_of_model:
            read = keys[1] in needed
            weights[keys[1]] = reader.tensor(name) if read else torch.empty(reader.shape(name), device="meta")
        elif optimizer and keys[:2] == (optimizer, "state") and keys[2] in needed:
            entries.setdefault(keys[2], {})[keys[3]] = reader.tensor(name)
    if not optimizer:
        return Checkpoint(weights, None)
    groups = reader.groups(optimizer)
    if groups is None:
        raise ParallelError(
            f"{reader.path} has no state of the part {optimizer!r}; leave it out, as by load_optimizer=False"
        )
    others: dict[tuple[str, ...], Any] = {}
    for name, value in reader.values().items():
        keys = reader.split(name)
        if keys[:2] == (optimizer, "state"):
            if len(keys) == 4 and keys[2] in needed:
                entries.setdefault(keys[2], {})[keys[3]] = value
        elif keys[0] == optimizer:
            # Such as the scale of the loss.
            others[keys[1:]] = value
    return Checkpoint(weights, {**nest(others), "state": entries, "param_groups": groups})


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
    (optimizer,) = optimizers
    assert isinstance(optimizer, DistributedOptimizer)
    return optimizer


def _read(folder: CheckpointFolder, tag: str, partial: bool, with_optimizer: bool) -> Checkpoint:
    """Read model and, on request, optimizer state, joined from all parts."""
    if partial:
        parts, *states = folder.read_parts(tag, ("model", "optimizer") if with_optimizer else ("model",))
        # A buffer of code that runs on every rank is in several parts; the first rank's counts.
        weights = {name: value for part in reversed(parts) for name, value in part.items() if name != PARTIAL_KEY}
        return Checkpoint(weights, optimizer_state.join(states[0]) if with_optimizer else None)
    content = read_whole(folder.full(tag), map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(content, Mapping) or "model" not in content or not isinstance(content["model"], Mapping):
        content = {"model": content}
    if with_optimizer and "optimizer" not in content:
        raise ParallelError(f"{folder.full(tag)} has no optimizer state; pass load_optimizer=False")
    return Checkpoint(content["model"], content.get("optimizer"))


def check_model(model: DistributedModel, weights: Any, strict: bool) -> None:
    """Raise `ParallelError` when names (if `strict`) or shapes are not those of the model."""
    expected = local_parts.state_dict(model.module)
    if not isinstance(weights, Mapping):
        raise ParallelError(f"the checkpoint is no state dict but a {type(weights).__qualname__}")
    if strict and set(expected) != set(weights):
        raise ParallelError(
            f"the checkpoint is of another model: missing {sorted(set(expected) - set(weights))[:5]},"
            f" unexpected {sorted(set(weights) - set(expected))[:5]}"
        )
    shapes = own_parts.whole_shapes(model)
    # `load_state_dict` would also notice a wrong shape, but only after it has changed some of the parameters.
    for name, value in expected.items():
        saved = weights.get(name)
        if isinstance(value, torch.Tensor) and saved is not None and shapes[name] != tuple(saved.shape):
            raise ParallelError(
                f"the checkpoint is of another model: {name!r} has shape {list(saved.shape)}, the model's"
                f" {list(shapes[name])}"
            )


def _newest_on_every_rank(read: Callable[[Mapping[str, str]], Result]) -> Result:
    """Like `_on_every_rank`, without the checkpoints that a rank has found damaged, which `read` gets."""
    passed: dict[str, str] = {}
    while True:
        try:
            return _on_every_rank(lambda: read(passed))
        except Exception as error:  # noqa: BLE001  every rank has one, and raises it again
            pass_over(error, passed, lambda own: communication.allgather(own, CommGroup.WORLD))


def _on_every_rank(read: Callable[[], Result]) -> Result:
    """Call `read` on every rank and return its result; raise on all ranks when it failed on one."""
    failure = None
    try:
        result = read()
    except Exception as error:  # noqa: BLE001  raised below, after the other ranks have the reason
        failure = error
    # Every rank takes part, whether it failed or not: the others wait for its answer.
    failures = communication.allgather(None if failure is None else str(failure), CommGroup.WORLD)
    if failure is not None:
        raise failure
    for rank, text in enumerate(failures):
        if text is not None:
            raise ParallelError(f"rank {rank} cannot resume: {text}")
    return result
