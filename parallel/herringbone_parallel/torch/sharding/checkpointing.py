"""`save`, `async_save`, `maybe_finalize_async_calls` and `load` of a state, under AWS's names and arguments.

    saver.async_save({"model": ..., "optimizer": ...}, checkpoint_id=f"{folder}/step-100")
    saver.maybe_finalize_async_calls(blocking=True)
    loader.load(state_dict, checkpoint_id=f"{folder}/step-100")

A checkpoint has the one form of `torch/checkpoint/`: it loads on any mesh. A script that names a `storage_writer`, a
`storage_reader` or a `planner` of torch gets torch's own functions. Source of the names: the developer guide, "The
SageMaker model parallel library v2 reference".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.sharding import parts

# AWS's arguments that change nothing here: every rank learns of another's error, and plans are compared, in any case.
_WITHOUT_EFFECT = frozenset({"wait_error_handling", "force_check_all_plans", "check_keys_matched", "coordinator_rank"})

_groups: dict[dist.ProcessGroup, Any] = {}
_pending: dict[int, Any] = {}
_started = 0


def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: dist.ProcessGroup | None = None,
    **options: Any,
) -> None:
    """Write a state, and return when it is complete on all ranks; every rank of the group calls it.

        save({"model": model.state_dict(), "epoch": 3}, checkpoint_id=f"{folder}/step-100")

    Raises `ParallelError` without a `checkpoint_id`, for S3's arguments, and when a rank cannot write.
    """
    _save("save", state_dict, checkpoint_id, storage_writer, planner, process_group, options)


def async_save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: dist.ProcessGroup | None = None,
    **options: Any,
) -> None:
    """Copy a state to the host's memory, return, and write it in the background; every rank of the group calls it.

    `maybe_finalize_async_calls` says when it is complete, and raises its error. Raises `ParallelError` as `save` does.
    """
    global _started
    pending = _save("async_save", state_dict, checkpoint_id, storage_writer, planner, process_group, options)
    _started += 1
    _pending[_started] = pending


def maybe_finalize_async_calls(blocking: bool = True, process_group: dist.ProcessGroup | None = None) -> list[int]:  # noqa: ARG001
    """Return the numbers of the saves in the background that are complete now, from 1; `blocking` waits for all.

    Raises the error of a save that failed. Each number is returned once.
    """
    finished = []
    for number, pending in list(_pending.items()):
        if not blocking and not _is_over(pending):
            continue
        # Before its error is raised: a save that failed is never complete.
        del _pending[number]
        pending.result()
        finished.append(number)
    return finished


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_reader: Any = None,
    planner: Any = None,
    process_group: dist.ProcessGroup | None = None,
    **options: Any,
) -> None:
    """Read a checkpoint into the tensors of a state, whatever mesh wrote it; every rank of the group calls it.

        state = {"model": model.state_dict(), "epoch": 0}
        load(state, checkpoint_id=f"{folder}/step-100")

    Values that are no tensors are replaced in `state_dict`; they are unpickled, so ask for them only in folders that
    you trust. Raises `ParallelError` without a `checkpoint_id`, for S3's
    arguments, and when the checkpoint is incomplete or of another model.
    """
    _refuse(options)
    if storage_reader is not None or planner is not None:
        from torch.distributed.checkpoint import state_dict_loader as dcp

        dcp.load(
            state_dict,
            checkpoint_id=checkpoint_id,
            storage_reader=storage_reader,
            planner=planner,
            process_group=process_group,
        )
        return
    from herringbone_parallel.torch.checkpoint import api

    folder, tag = _place(checkpoint_id)
    state, rest = _split(state_dict)
    loaded = api.load(folder, state, tag, peers=_peers(process_group))
    if rest:
        values = loaded.user_content() or {}
        state_dict.update({name: value for name, value in values.items() if name in rest})


def _save(
    name: Literal["save", "async_save"],
    state_dict: dict[str, Any],
    checkpoint_id: str | os.PathLike[str] | None,
    storage_writer: Any,
    planner: Any,
    process_group: dist.ProcessGroup | None,
    options: Mapping[str, Any],
) -> Any:
    """Call the function of this name: torch's own for a storage writer or a planner of the script, otherwise ours."""
    _refuse(options)
    _refuse_parts(process_group)
    if storage_writer is not None or planner is not None:
        from torch.distributed.checkpoint import state_dict_saver as dcp

        return getattr(dcp, name)(
            state_dict,
            checkpoint_id=checkpoint_id,
            storage_writer=storage_writer,
            planner=planner,
            process_group=process_group,
        )
    from herringbone_parallel.torch.checkpoint import api

    folder, tag = _place(checkpoint_id)
    state, rest = _split(state_dict)
    return getattr(api, name)(folder, tag, state, contents=_contents(rest), peers=_peers(process_group))


def _is_over(pending: Any) -> bool:
    try:
        return bool(pending.done())
    except Exception:  # noqa: BLE001  raised again by `result`
        return True


def _refuse(options: Mapping[str, Any]) -> None:
    """Raise `ParallelError` for arguments of AWS's functions that ask for something that is not there."""
    asked = [name for name, value in options.items() if value is not None and name not in _WITHOUT_EFFECT]
    if asked:
        raise ParallelError(
            f"not available in this release: {', '.join(asked)}. A checkpoint goes to a folder; the job copies"
            " /opt/ml/checkpoints to checkpoint_s3_uri"
        )


def _refuse_parts(group: dist.ProcessGroup | None) -> None:
    """Raise `ParallelError` where ranks would write different parts of a tensor under one name."""
    if group is None and parts.are_plain():
        raise ParallelError(
            "under FullyShardedDataParallel, each tensor-parallel rank has its own part of a parameter, under one name:"
            " save to a folder per state.tp_rank with process_group=model.process_group, or shard the model with"
            " tsm.shard, whose checkpoints load on any mesh"
        )


def _place(checkpoint_id: str | os.PathLike[str] | None) -> tuple[Path, str]:
    """Return the folder of the checkpoints, and the name of this one in it."""
    if checkpoint_id is None or not os.fspath(checkpoint_id):
        raise ParallelError("checkpoint_id is missing: give the folder of this checkpoint, one for each save")
    if os.fspath(checkpoint_id).startswith("s3://"):
        raise ParallelError(
            f"checkpoint_id {checkpoint_id} is in S3: write to /opt/ml/checkpoints, which the job copies to"
            " checkpoint_s3_uri"
        )
    path = Path(checkpoint_id)
    return path.parent, path.name


def _split(state_dict: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of a state that hold tensors, and the others, which are the same on every rank."""
    state = {name: value for name, value in state_dict.items() if _holds_tensors(value)}
    if state and all(isinstance(value, torch.Tensor) for value in state.values()):
        # A model's own state, not yet one part of several.
        state = {"model": state}
    rest = {name: value for name, value in state_dict.items() if not _holds_tensors(value)}
    return state, rest


def _contents(rest: dict[str, Any]) -> Any:
    from herringbone_parallel.torch.checkpoint.api import Contents

    return Contents(user_content=rest) if rest else Contents()


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_tensors, value.values()))
    return isinstance(value, torch.Tensor)


def _peers(group: dist.ProcessGroup | None) -> Any:
    from herringbone_parallel.torch.checkpoint.api import Peers

    if group is None:
        return None
    # Once for each group: a new one makes a process group, and new buffers for the copies.
    if group not in _groups:
        _groups[group] = Peers.of_group(group)
    return _groups[group]
