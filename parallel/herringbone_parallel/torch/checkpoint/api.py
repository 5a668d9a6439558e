"""Save and load checkpoints on any mesh; the libraries for SMP version 1 and 2 use these functions, and scripts may.

    from herringbone_parallel.torch.checkpoint import api as checkpoint

    state = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}
    checkpoint.async_save(os.environ["SM_CHECKPOINT_DIR"], f"step-{step}", state)
    ...
    checkpoint.load(os.environ["SM_CHECKPOINT_DIR"], state)      # the newest one, into the tensors of `state`

A value of a state is a tensor, a DTensor, a `Piece` of a tensor or a list of pieces; or a number or string. Ranks may
have different names, as in a pipeline. Replicas are written once. An optimizer's state comes by parameter name.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from herringbone_parallel.torch.checkpoint.background import Background
from herringbone_parallel.torch.checkpoint.loading import Loaded, load_into
from herringbone_parallel.torch.checkpoint.peers import Peers
from herringbone_parallel.torch.checkpoint.pieces import Piece, flat_pieces
from herringbone_parallel.torch.checkpoint.reading import DamagedError, Reader, find
from herringbone_parallel.torch.checkpoint.saving import Contents, Saver
from herringbone_parallel.torch.checkpoint.targets import FolderTarget, Target

__all__ = [
    "Contents",
    "DamagedError",
    "Loaded",
    "Peers",
    "PendingSave",
    "Piece",
    "Reader",
    "async_save",
    "finalize",
    "find",
    "flat_pieces",
    "load",
    "read_plain",
    "save",
]

Folder = str | os.PathLike[str]


class PendingSave:
    """A save in the background. Its error is raised at each call, also after a later save has raised it."""

    def __init__(self, background: Background) -> None:
        self._background = background

    def done(self) -> bool:
        """Return whether the save is over. Raises its error."""
        return self._background.finish(0.0)

    def result(self, timeout: float | None = None) -> None:
        """Wait until the save is over. Raises its error, and `TimeoutError` after `timeout` seconds."""
        if not self._background.finish(timeout):
            raise TimeoutError(f"the checkpoint is not written after {timeout} s")


_savers: weakref.WeakSet[Saver] = weakref.WeakSet()


def save(
    folder: Folder,
    tag: str,
    state: Mapping[str, Any],
    *,
    contents: Contents | None = None,
    peers: Peers | None = None,
    on_complete: Callable[[], None] | None = None,
) -> None:
    """Write the checkpoint `<folder>/<tag>`, and return when it is complete; every rank must call.

        checkpoint.save(os.environ["SM_CHECKPOINT_DIR"], "step-100", {"model": model.state_dict()})

    `on_complete` is called on one rank of each folder, after `newest` names the checkpoint. Raises `ParallelError` on
    every rank when one of them cannot write; nothing is left then.
    """
    saver, target = _saver(peers, folder)
    saver.start(target, tag, state, contents or Contents(), on_complete, in_background=False)


def async_save(
    folder: Folder,
    tag: str,
    state: Mapping[str, Any],
    *,
    contents: Contents | None = None,
    peers: Peers | None = None,
    on_complete: Callable[[], None] | None = None,
) -> PendingSave:
    """Copy the state to the CPU, return, and write the checkpoint in the background; every rank must call.

        pending = checkpoint.async_save(os.environ["SM_CHECKPOINT_DIR"], "step-100", {"model": model.state_dict()})

    A save that still runs is finished first. Call `finalize` before `destroy_process_group`: the ranks tell each other
    when their files are written.
    """
    saver, target = _saver(peers, folder)
    background = saver.start(target, tag, state, contents or Contents(), on_complete, in_background=True)
    assert background is not None
    return PendingSave(background)


def finalize(blocking: bool = True) -> bool:
    """Wait for saves in the background, or ask whether they are over; raises the error of one that failed."""
    # All of them, also when the first still runs.
    over = [saver.finish(blocking) for saver in list(_savers)]
    return all(over)


def _finish_at_exit() -> None:
    """Show the error of a last save that the script did not ask for, and end the process with 1.

    A rank of a job has reported that error as its failure before; see `herringbone_entry/ranks/last_saves.py`.
    """
    try:
        finalize()
    except BaseException as error:  # noqa: BLE001  shown as Python shows the error that ends a script
        sys.excepthook(type(error), error, error.__traceback__)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        # Python ignores what else a callback at the exit does: the exit code would be 0.
        os._exit(1)


atexit.register(_finish_at_exit)


def load(
    folder: Folder, state: Mapping[str, Any], tag: str | Reader | None = None, *, peers: Peers | None = None
) -> Loaded:
    """Read a checkpoint into the tensors of `state`, whatever mesh wrote it; every rank must call.

        loaded = checkpoint.load(os.environ["SM_CHECKPOINT_DIR"], {"model": model.state_dict()})
        first_step = loaded.extra["step"]

    Without a `tag`, the newest complete one; a reader counts as the tag of its checkpoint, which is not read again.
    `state` may hold less than the checkpoint. Numbers of `state` (an optimizer's `step`) and its parameter groups are
    replaced in place. Raises `ParallelError` on every rank, before anything is changed, when no checkpoint is whole,
    that of the `tag` is damaged, or it is of another model.
    """
    finalize()
    return load_into(Path(folder), state, tag, Peers.default() if peers is None else peers)


def read_plain(path: Folder) -> dict[str, Any]:
    """Return the state of the checkpoint in this folder with whole tensors, in one process and without a process group.

        state = checkpoint.read_plain("checkpoints/step-100")
        model.load_state_dict(state["model"])

    The tensors may be the mapped files; a change in place does not reach the files.
    """
    return Reader(Path(path)).state()


def saver_of(peers: Peers) -> Saver:
    """Return the saver of these ranks, which is made once."""
    if peers.saver is None:
        peers.saver = Saver(peers)
        _savers.add(peers.saver)
    saver: Saver = peers.saver
    return saver


def _saver(peers: Peers | None, folder: Folder) -> tuple[Saver, Callable[[str, str], Target]]:
    peers = Peers.default() if peers is None else peers
    return saver_of(peers), partial(FolderTarget, Path(folder), peers.only_savers)
