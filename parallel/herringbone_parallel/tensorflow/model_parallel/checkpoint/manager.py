"""`smp.CheckpointManager`: one checkpoint of the whole job, that any number of partitions restores.

The first rank writes for all, in TensorFlow's own format (`tf.train.load_checkpoint` reads it): hosts need no folder in
common, and a checkpoint is there whole or not at all.
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
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.checkpoint.names import Named, named_variables
from herringbone_parallel.tensorflow.model_parallel.communication import allgather, broadcast, recv_from, send

Result = TypeVar("Result")


class CheckpointManager:
    """Keeps checkpoints of a model on several ranks, its optimizer and whatever else a script counts.

        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
        manager = smp.CheckpointManager(checkpoint, "/opt/ml/checkpoints", max_to_keep=3)
        manager.restore()       # the newest, if there is one; at any time
        ...
        manager.save()          # after the first step

    Every rank calls. Before the first step there is no model to restore into: what `restore` has found is then restored
    when the model is partitioned, in that step. Files are on the first rank's host. Source: SMP v1 for TensorFlow.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        directory: str | os.PathLike[str] = "/opt/ml/checkpoints",
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
        self._directory, self._name, self._kept = Path(directory), checkpoint_name, max_to_keep

    def save(self) -> str:
        """Write a checkpoint and return its path, less the endings of its files.

        Raises `ParallelError` on every rank when it cannot be written, and before the first step.
        """
        own = self._own("save")
        here = state.get()
        mine = {named.name: named.variable.numpy() for named in own if named.speaker in (None, here.pp_rank)}
        parts: list[Mapping[str, Any]] = [mine]
        # Replicas hold the same: the first one's is saved.
        first_pipeline = here.grid.group("P", 0)
        if here.rank == 0:
            parts += [recv_from(rank, RankType.WORLD_RANK) for rank in first_pipeline[1:]]
        elif here.rank in first_pipeline:
            send(mine, 0, RankType.WORLD_RANK)
        return str(_on_first_rank(partial(self._write, parts)))

    def restore(self, save_path: str | os.PathLike[str] | None = None) -> str | None:
        """Restore a checkpoint, the newest if none is given, and return its path; None when there is none.

        Raises `ParallelError` on every rank for one that is not there, damaged, or of another model; before the first
        step, a damaged or foreign one is found out in that step.
        """
        found = _on_first_rank(partial(self._find, save_path))
        if found is None:
            return None
        here = state.get()
        if here.partitioned:
            self._load(found)
        else:
            here.hooks.append(partial(self._load, found))
        return found

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint in this host's folder."""
        return tf.train.latest_checkpoint(str(self._directory))  # type: ignore[no-any-return]

    def _own(self, what: str) -> list[Named]:
        here = state.get()
        if not here.partitioned or here.model is None:
            raise ParallelError(f"smp.CheckpointManager.{what}: before the first step no variable has a value")
        objects = self._checkpoint._trackable_children()
        return named_variables({key: objects[key] for key in objects if key != "save_counter"}, here.model)

    def _numbered(self) -> list[str]:
        """Return the names of the checkpoints in the folder, the oldest first."""
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
            written = [_write_part(unfinished / str(rank), part) for rank, part in enumerate(parts) if part]
            path = str(self._directory / name)
            tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=written, destination_prefix=path, delete_old_dirs=True)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        everything = [*before, name]
        kept = everything[-self._kept :] if self._kept else everything
        # What `tf.train.latest_checkpoint` reads.
        tf.__internal__.train.update_checkpoint_state(str(self._directory), name, kept)
        for old in everything[: -len(kept)]:
            # The index first: what is left without one is no checkpoint.
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
        """Read the checkpoint on the first rank, and give every rank what it holds."""
        own = self._own("restore")
        here = state.get()
        wanted = {named.name: tuple(named.variable.shape) for named in own}
        everyone = [wanted] if here.transport is None else allgather(wanted, WORLD)
        parts: list[Mapping[str, Any]] = []
        _on_first_rank(lambda: parts.extend(_read(path, everyone)))
        if here.rank == 0:
            for rank in range(1, len(everyone)):
                send(parts[rank], rank, RankType.WORLD_RANK)
        else:
            parts.append(recv_from(0, RankType.WORLD_RANK))
        for named in own:
            named.variable.assign(parts[0][named.name])


def _on_first_rank(run: Callable[[], Result]) -> Result:
    """Return on every rank what `run` returns on the first, or raise what it raises there."""
    here = state.get()
    if here.rank != 0:
        said, result = recv_from(0, RankType.WORLD_RANK)
        if said is not None:
            raise ParallelError(f"rank 0: {said}")
        return result  # type: ignore[no-any-return]
    try:
        result = run()
    except (ParallelError, OSError, tf.errors.OpError) as error:
        if here.transport is not None:
            broadcast((str(error), None), WORLD)
        if isinstance(error, ParallelError):
            raise
        raise ParallelError(str(error)) from error
    if here.transport is not None:
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


def _read(path: str, everyone: list[dict[str, tuple[int, ...]]]) -> list[dict[str, Any]]:
    try:
        reader = tf.train.load_checkpoint(path)
        shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
        wanted = {name: shape for part in everyone for name, shape in part.items()}
        _compare(path, shapes, wanted)
        read = {name: reader.get_tensor(name) for name in wanted}
    # Its reader tells what it found by Python's own errors, among them IndexError for a file that is too short.
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        raise ParallelError(f"{path} is damaged, or incomplete: {error}. Restore an older one") from error
    return [{name: read[name] for name in part} for part in everyone]


def _compare(path: str, there: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    missing = sorted(set(wanted) - set(there))
    more = sorted(set(there) - set(wanted))
    other = sorted(name for name in wanted if name in there and wanted[name] != there[name])
    if not (missing or more or other):
        return
    said = [f"it has no {missing[0]!r}"] if missing else []
    said += [f"only it has {more[0]!r}"] if more else []
    said += [f"{other[0]!r} has the shape {there[other[0]]} there and {wanted[other[0]]} here"] if other else []
    raise ParallelError(
        f"{path} is a checkpoint of another model, optimizer or tf.train.Checkpoint: {'; '.join(said)}"
        f" ({len(missing) + len(more) + len(other)} differences). Restore one of this script, or change the script back"
    )
