"""`smp.CheckpointManager`: one checkpoint of the whole job, which any number of partitions can restore.

The first rank writes for all ranks, in TensorFlow's own format (`tf.train.load_checkpoint` reads it). Hosts therefore
need no common folder, and a checkpoint is there whole or not at all.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import WORLD, RankType
from herringbone_parallel.job_folders import checkpoint_dir
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.checkpoint.names import NamedVariable, named_variables
from herringbone_parallel.tensorflow.model_parallel.communication import allgather, broadcast, recv_from, send

Result = TypeVar("Result")


class CheckpointManager:
    """Keeps checkpoints of a model on several ranks, its optimizer and other variables of a script.

        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
        manager = smp.CheckpointManager(checkpoint, max_to_keep=3)
        manager.restore()       # the newest, if there is one; at any time
        ...
        manager.save()          # after the first step

    Every rank calls. Before the first step there is no model to restore into; `restore` then takes effect in that step,
    when the model is partitioned. Files are on the first rank's host, by default in
    `SM_CHECKPOINT_DIR`. Source: SMP v1 for TensorFlow.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        directory: str | os.PathLike[str] | None = None,
        max_to_keep: int | None = None,
        checkpoint_name: str = "ckpt",
    ) -> None:
        if not isinstance(checkpoint, tf.train.Checkpoint):
            raise ParallelError(f"smp.CheckpointManager takes a tf.train.Checkpoint, not {checkpoint!r}")
        if max_to_keep is not None and (isinstance(max_to_keep, bool) or max_to_keep < 1):
            raise ParallelError(f"max_to_keep={max_to_keep!r}: the number of checkpoints to keep, or None for all")
        if Path(checkpoint_name).name != checkpoint_name or checkpoint_name in ("", ".", ".."):
            raise ParallelError(f"checkpoint_name={checkpoint_name!r} is not a file's name; the folder is `directory`")
        self._checkpoint = checkpoint
        self._directory = Path(checkpoint_dir() if directory is None else directory)
        self._name, self._max_to_keep = checkpoint_name, max_to_keep

    def save(self) -> str:
        """Write a checkpoint and return its path, without the endings of its files.

        Raises `ParallelError` on every rank when it cannot be written, and before the first step.
        """
        own_variables = self._own_variables("save")
        rank_state = state.get()
        own_values = {
            named.name: named.variable.numpy() for named in own_variables if named.writer in (None, rank_state.pp_rank)
        }
        parts: list[Mapping[str, Any]] = [own_values]
        # Replicas hold equal values, so only the first pipeline sends its values.
        first_pipeline = rank_state.grid.group("P", 0)
        if rank_state.rank == 0:
            parts += [recv_from(rank, RankType.WORLD_RANK) for rank in first_pipeline[1:]]
        elif rank_state.rank in first_pipeline:
            send(own_values, 0, RankType.WORLD_RANK)
        return str(_on_first_rank(partial(self._write, parts)))

    def restore(self, save_path: str | os.PathLike[str] | None = None) -> str | None:
        """Restore a checkpoint, by default the newest, and return its path; None when there is no checkpoint.

        Raises `ParallelError` on every rank for a checkpoint that is missing, damaged, or of another model. Before the
        first step, that step raises for a damaged or foreign one.
        """
        path = _on_first_rank(partial(self._find, save_path))
        if path is None:
            return None
        rank_state = state.get()
        if rank_state.partitioned:
            self._load(path)
        else:
            rank_state.hooks.append(partial(self._load, path))
        return path

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint in this host's folder."""
        return tf.train.latest_checkpoint(str(self._directory))  # type: ignore[no-any-return]

    def _own_variables(self, caller: str) -> list[NamedVariable]:
        rank_state = state.get()
        if not rank_state.partitioned or rank_state.model is None:
            raise ParallelError(f"smp.CheckpointManager.{caller}: before the first step no variable has a value")
        objects = self._checkpoint._trackable_children()
        # TensorFlow adds its own counter to a checkpoint; the number in the file's name replaces it here.
        return named_variables({key: objects[key] for key in objects if key != "save_counter"}, rank_state.model)

    def _numbered(self) -> list[str]:
        """Return the names of the checkpoints in the folder, oldest first."""
        pattern = re.compile(re.escape(self._name) + r"-(\d+)\.index")
        matches = [match for path in self._directory.glob("*.index") if (match := pattern.fullmatch(path.name))]
        return [match.string.removesuffix(".index") for match in sorted(matches, key=lambda m: int(m[1]))]

    def _write(self, parts: Sequence[Mapping[str, Any]]) -> str:
        self._directory.mkdir(parents=True, exist_ok=True)
        before = self._numbered()
        number = int(before[-1].rpartition("-")[2]) + 1 if before else 1
        name = f"{self._name}-{number}"
        unfinished = self._directory / f".{name}.unfinished"
        try:
            prefixes = [_write_part(unfinished / str(rank), part) for rank, part in enumerate(parts) if part]
            path = str(self._directory / name)
            # The merge renames finished files, so a process that dies before it leaves no half checkpoint.
            tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=path, delete_old_dirs=True)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        names = [*before, name]
        kept = names[-self._max_to_keep :] if self._max_to_keep else names
        # Writes the file that `tf.train.latest_checkpoint` reads.
        tf.__internal__.train.update_checkpoint_state(str(self._directory), name, kept)
        for old in names[: -len(kept)]:
            # The index first: data files without an index are no checkpoint.
            for file in (self._directory / f"{old}.index", *self._directory.glob(f"{old}.data-*")):
                file.unlink(missing_ok=True)
        return path

    def _find(self, save_path: str | os.PathLike[str] | None) -> str | None:
        if save_path is None:
            numbered = self._numbered()
            return str(self._directory / numbered[-1]) if numbered else None
        if not Path(f"{os.fspath(save_path)}.index").exists():
            raise ParallelError(f"{os.fspath(save_path)} is not a checkpoint: there is no {os.fspath(save_path)}.index")
        return os.fspath(save_path)

    def _load(self, path: str) -> None:
        """Read the checkpoint on the first rank, and send each rank the values of its variables."""
        own_variables = self._own_variables("restore")
        rank_state = state.get()
        own_shapes = {named.name: tuple(named.variable.shape) for named in own_variables}
        shapes_by_rank = [own_shapes] if rank_state.transport is None else allgather(own_shapes, WORLD)
        parts: list[Mapping[str, Any]] = []
        _on_first_rank(lambda: parts.extend(_read(path, shapes_by_rank)))
        if rank_state.rank == 0:
            for rank in range(1, len(shapes_by_rank)):
                send(parts[rank], rank, RankType.WORLD_RANK)
        else:
            parts.append(recv_from(0, RankType.WORLD_RANK))
        for named in own_variables:
            named.variable.assign(parts[0][named.name])


def _on_first_rank(run: Callable[[], Result]) -> Result:
    """Return on every rank what `run` returns on the first rank, or raise there what it raises."""
    rank_state = state.get()
    if rank_state.rank != 0:
        failure, result = recv_from(0, RankType.WORLD_RANK)
        if failure is not None:
            raise ParallelError(f"rank 0: {failure}")
        return result  # type: ignore[no-any-return]
    try:
        result = run()
    except (ParallelError, OSError, tf.errors.OpError) as error:
        # The other ranks wait for the result, so they must receive the failure in its place.
        if rank_state.transport is not None:
            broadcast((str(error), None), WORLD)
        if isinstance(error, ParallelError):
            raise
        raise ParallelError(str(error)) from error
    if rank_state.transport is not None:
        broadcast((None, result), WORLD)
    return result


def _write_part(prefix: Path, tensors: Mapping[str, Any]) -> str:
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.convert_to_tensor(tensor) for tensor in tensors.values()],
    )
    return str(prefix)


def _read(path: str, shapes_by_rank: list[dict[str, tuple[int, ...]]]) -> list[dict[str, Any]]:
    try:
        reader = tf.train.load_checkpoint(path)
        shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
        wanted = {name: shape for part in shapes_by_rank for name, shape in part.items()}
        _compare(path, shapes, wanted)
        values = {name: reader.get_tensor(name) for name in wanted}
    # TensorFlow's reader raises Python's own errors, among them IndexError for a file that is too short.
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        raise ParallelError(f"{path} is damaged, or incomplete: {error}. Restore an older one") from error
    return [{name: values[name] for name in part} for part in shapes_by_rank]


def _compare(path: str, saved: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    missing = sorted(set(wanted) - set(saved))
    surplus = sorted(set(saved) - set(wanted))
    reshaped = sorted(name for name in wanted if name in saved and wanted[name] != saved[name])
    if not (missing or surplus or reshaped):
        return
    differences = [f"it has no {missing[0]!r}"] if missing else []
    differences += [f"only it has {surplus[0]!r}"] if surplus else []
    differences += (
        [f"{reshaped[0]!r} has the shape {saved[reshaped[0]]} there and {wanted[reshaped[0]]} here"] if reshaped else []
    )
    raise ParallelError(
        f"{path} is a checkpoint of another model, optimizer or tf.train.Checkpoint: {'; '.join(differences)}"
        f" ({len(missing) + len(surplus) + len(reshaped)} differences). Restore one of this script, or change the"
        " script back"
    )
