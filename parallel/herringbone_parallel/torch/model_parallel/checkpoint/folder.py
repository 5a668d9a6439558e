"""The folder that `smp.save_checkpoint` writes; any number of partitions can read it.

    <path>/
      <tag>_partial/                    a partial checkpoint, of the form of `herringbone_contract.checkpoint.manifest`
      <tag>                             a full checkpoint, {"model", "optimizer"}: torch loads both without this library
      user_content_<tag>
      newest                            the name of the newest checkpoint, written last

Earlier releases wrote a partial checkpoint as one file per part, which this release still reads:

        model_<pp>_<tp>.pt              {"save", "partitions", "content": DistributedModel.local_state_dict()}
        optimizer_<pp>_<tp>.pt          the same around DistributedOptimizer.local_state_dict()
        user_content.pt

"save" is the same in all files of one save, so that files of two saves under one tag are not mixed. The
optimizer's files have the master weights and the scale of the loss of 16-bit training.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from herringbone_contract.checkpoint.manifest import MANIFEST, REMOVED
from herringbone_contract.checkpoint.publication import note_newest
from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint.reading import Reader, find
from herringbone_parallel.torch.model_parallel.checkpoint.save_load import read_whole

_PARTIAL = "_partial"
_NEWEST = "newest"
_USER_CONTENT = "user_content"


class CheckpointFolder:
    """The names and files of one such folder.

    folder = CheckpointFolder(os.environ["SM_CHECKPOINT_DIR"])
    parts, moments = folder.read_parts(folder.newest_tag(partial=True), ("model", "optimizer"))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def partial(self, tag: str) -> Path:
        """Return the folder of a partial checkpoint."""
        return self.path / f"{_checked(tag)}{_PARTIAL}"

    def full(self, tag: str) -> Path:
        """Return the file of a full checkpoint."""
        return self.path / _checked(tag)

    def user_content(self, tag: str, partial: bool) -> Path:
        """Return the file of the user's own content."""
        return self.partial(tag) / f"{_USER_CONTENT}.pt" if partial else self.path / f"{_USER_CONTENT}_{_checked(tag)}"

    def part(self, tag: str, kind: str, pp_rank: int, tp_rank: int) -> Path:
        """Return the file of one rank's part of the "model" or the "optimizer"."""
        return self.partial(tag) / f"{kind}_{pp_rank}_{tp_rank}.pt"

    def newest_tag(self, partial: bool) -> str:
        """Return the newest checkpoint's tag. Raises `ParallelError` if there is none, or one of the other kind."""
        try:
            name = (self.path / _NEWEST).read_text(encoding="utf-8").strip()
        except FileNotFoundError as error:
            raise ParallelError(f"{self.path} has no file `{_NEWEST}`, so no checkpoint; or give its `tag`") from error
        if name.endswith(_PARTIAL) != partial:
            raise ParallelError(
                f"the newest checkpoint of {self.path}, {name}, is a {'full' if partial else 'partial'} one;"
                f" pass partial={not partial}, or the `tag` of another"
            )
        return name.removesuffix(_PARTIAL)

    def reader(self, tag: str, newest: bool, passed: Mapping[str, str]) -> Reader | None:
        """Return the reader of a partial checkpoint of today's form, None for one of the earlier form.

        With `newest`, one that is incomplete, or among `passed`, counts as absent, and the one before it is read.
        """
        if any(self.partial(tag).glob("model_*.pt")):
            return None
        if newest:
            return Reader.find(self.path, passed=passed)
        path = find(self.path, self.partial(tag).name)
        return Reader(path) if path.exists() else None

    def note_newest(self, tag: str, partial: bool) -> None:
        """Make this checkpoint the newest one."""
        note_newest(self.path, f"{tag}{_PARTIAL if partial else ''}")

    def read_parts(self, tag: str, kinds: Sequence[str]) -> list[list[dict[str, Any]]]:
        """Return the content of every rank's part, for each kind.

        The files are mapped into memory, so that only tensors that are used are read. Raises `ParallelError` when a
        part is missing, damaged, or of another save.
        """
        by_kind = {
            kind: [_read_part(path) for path in sorted(self.partial(tag).glob(f"{kind}_*.pt"))] for kind in kinds
        }
        for kind, parts in by_kind.items():
            if not parts:
                first = self.part(tag, kind, 0, 0)
                raise ParallelError(f"{first} does not exist: there is no partial checkpoint {tag!r} with a {kind}")
            if len(parts) != parts[0]["partitions"]:
                raise ParallelError(
                    f"{self.partial(tag)}: the checkpoint was written by {parts[0]['partitions']} partitions, but has"
                    f" {len(parts)} {kind} file(s); bring those of all hosts into one folder"
                )
        if len({part["save"] for parts in by_kind.values() for part in parts}) > 1:
            raise ParallelError(
                f"{self.partial(tag)} has files of different saves: the last save under this tag was interrupted."
                " Resume from another checkpoint"
            )
        return [[part["content"] for part in parts] for parts in by_kind.values()]

    def prune(self, kept: int) -> None:
        """Remove the oldest partial checkpoints until `kept` are left."""
        folders = [
            folder
            for folder in self.path.glob(f"*{_PARTIAL}")
            # A hidden one is a save that is not finished.
            if not folder.name.startswith(".") and (is_new_form(folder) or any(folder.glob("model_*.pt")))
        ]
        for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime_ns)[:-kept]:
            # Renamed first, so that an interrupted removal leaves no half checkpoint under its name.
            removed = folder.with_name(f".{folder.name}{REMOVED}")
            if removed.exists():
                # Of an interrupted removal under the same tag.
                shutil.rmtree(removed)
            folder.rename(removed)
            shutil.rmtree(removed)


def is_new_form(checkpoint: Path) -> bool:
    """Return whether a partial checkpoint is of today's form."""
    return (checkpoint / MANIFEST).exists()


def _read_part(path: Path) -> Mapping[str, Any]:
    # On the CPU, whatever device saved it: the tensors are copied into the model's afterwards.
    part = read_whole(path, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(part, dict) or set(part) != {"save", "partitions", "content"}:
        raise ParallelError(f"{path} was not written by smp.save_checkpoint")
    return part


def _checked(tag: str) -> str:
    reserved = tag.endswith(_PARTIAL) or tag.startswith(f"{_USER_CONTENT}_") or tag in ("", ".", "..", _NEWEST)
    if reserved or Path(tag).name != tag:
        raise ParallelError(
            f"{tag!r} cannot be a checkpoint's tag: a tag is a file name, and not `{_NEWEST}`, `{_USER_CONTENT}_*` or"
            f" `*{_PARTIAL}`, which the folder uses itself"
        )
    return tag
