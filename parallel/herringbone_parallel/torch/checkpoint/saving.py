"""Save a checkpoint: complete or absent, and in the background on request.

    main thread    [1] describe the pieces of this rank, and make the plan that all ranks share; the plan is kept while
                       no rank's description changes, of which the ranks tell each other during [2]
                   [2] copy what this rank writes to the CPU: training continues after this
    background     [3] make a hidden folder, write this rank's files into it, and wait for the disk
                   [4] one rank writes the manifest, renames the folder to its tag, and then `newest`
                   Into memory, files go to the host's holder in [3], and the manifest in [4]; see `targets`

A job that is killed before the rename of [4] leaves a hidden folder, which the next save of all ranks removes. Hosts
may have folders of their own: then one rank of each host does [4], and each folder has the files of its host's ranks.
"""

from __future__ import annotations

import io
import secrets
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from herringbone_contract.checkpoint.manifest import USER_CONTENT, File, Manifest, Tensor, checked_tag
from herringbone_contract.files import write_all
from herringbone_parallel.core.checkpoint_plan import Described, assign, files
from herringbone_parallel.torch.checkpoint.background import Background
from herringbone_parallel.torch.checkpoint.peers import Attempt, Peers, attempt
from herringbone_parallel.torch.checkpoint.pieces import Piece, pieces_by_name, type_name
from herringbone_parallel.torch.checkpoint.states import GROUPS, Flat, encode, flatten, merge_groups
from herringbone_parallel.torch.checkpoint.targets import Target
from herringbone_parallel.torch.checkpoint.writing import (
    Staged,
    Staging,
    Written,
    in_place,
    write,
)

ABSENT: Any = object()


class Contents(NamedTuple):
    """The parts of a checkpoint besides the state; all of them are the first rank's.

    `mesh` are the degrees of parallelism, for people. `extra` is JSON with tuples and small tensors. `user_content` is
    any object and is pickled, so whoever reads it must trust the folder.
    """

    mesh: Mapping[str, int] = {}
    extra: Any = None
    user_content: Any = ABSENT


class Plan(NamedTuple):
    """The plan of a save: each rank's host and pieces, those that it writes, and the names in the parameter groups."""

    hosts: list[str]
    described: list[list[Described]]
    names: list[dict[str, Any]]
    chosen: list[list[int]]


class Saver:
    """Saves to one folder after another; at most one save runs at a time.

    saver = Saver(Peers.default())
    target = partial(FolderTarget, Path("checkpoints"), True)
    saver.start(target, "step-100", {"model": model.state_dict()}, Contents(), None, in_background=True)
    saver.finish()
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._staging = Staging()
        self._plan: Plan | None = None
        self._background: Background | None = None

    def start(
        self,
        target: Callable[[str, str], Target],
        tag: str,
        state: Mapping[str, Any],
        contents: Contents,
        on_complete: Callable[[], None] | None,
        in_background: bool,
    ) -> Background | None:
        """Save, or begin to; every rank must call. An earlier save is finished first, and its error raised.

        `target` returns the place of a save, by its tag and its name.
        """
        self.finish()
        peers = self._peers
        copy = self._staging.copy if in_background else in_place
        tried = attempt(lambda: _begin(tag, state, contents, peers))
        save, plan, staged = self._agreed(tried, copy)
        job = _Job(peers, target(tag, save), tag, save, plan.hosts, on_complete)
        ours = tried.result.local
        # The pieces are dropped here: the job must not keep the memory of a model that the script drops.
        job.fill(plan, ours, dict(contents.mesh), staged)
        if not in_background:
            job.run()
            return None
        self._background = Background(job.run)
        return self._background

    def finish(self, blocking: bool = True) -> bool:
        """Wait for the save in the background, and return whether none runs. Raises a new error of it."""
        return self._background is None or self._background.finish(None if blocking else 0.0, again=False)

    @property
    def is_idle(self) -> bool:
        """True if another save can begin without a wait, and without an error of an earlier one."""
        return self._background is None or self._background.is_done

    def _agreed(self, tried: Attempt[_Begun], copy: _Copy) -> tuple[str, Plan, Staged | Exception]:
        """Return the first rank's name for this save, the plan that all ranks share, and this rank's copies.

        Raises on all ranks when the attempt of one failed.
        """
        peers, plan, ours = self._peers, self._plan, tried.result
        kept = plan if ours is not None and plan is not None and ours.is_in(plan, peers.rank) else None
        number = int(ours.save, 16) if ours is not None and peers.rank == 0 else 0
        # Whether a rank has another plan, and the two halves of the name.
        wait = peers.begin_maxima((kept is None, number >> 32, number & 0xFFFFFFFF))
        # Training waits for both, so the copy is made while the integers travel. Few saves need another one.
        staged = None if kept is None else _copied(copy, ours, kept, peers.rank)
        differs, high, low = wait()
        if kept is not None and staged is not None and not differs:
            return f"{high << 32 | low:016x}", kept, staged
        begun = peers.share(tried, "save")
        described = [rank.described for rank in begun]
        # Every rank computes the same plan, or the same error.
        plan = Plan([rank.host for rank in begun], described, [rank.names for rank in begun], assign(described))
        self._plan = plan
        return begun[0].save, plan, _copied(copy, ours, plan, peers.rank)


_Copy = Callable[[Sequence[Piece], Sequence[int]], Staged]


def _copied(copy: _Copy, ours: _Begun, plan: Plan, rank: int) -> Staged | Exception:
    assert ours.local is not None
    try:
        return copy(ours.local.pieces, plan.chosen[rank])
    except Exception as error:  # noqa: BLE001  raised where all ranks hear of it
        return error


class _Local(NamedTuple):
    """This rank's part of a save; never sent."""

    flat: Flat
    pieces: list[Piece]
    content: bytes | None
    # As JSON, because the options of an optimizer change with every step.
    groups: dict[str, list[dict[str, Any]]]
    extra: Any


class _Begun:
    """A description of this rank's part for the other ranks. The part itself stays behind when this is pickled."""

    def __init__(
        self, save: str, host: str, described: list[Described], names: dict[str, Any], local: _Local | None
    ) -> None:
        self.save, self.host, self.described, self.names, self.local = save, host, described, names, local

    def __reduce__(self) -> Any:
        return _Begun, (self.save, self.host, self.described, self.names, None)

    def is_in(self, plan: Plan, rank: int) -> bool:
        """Return whether the plan was made with this description of the rank."""
        kept = plan.hosts[rank], plan.described[rank], plan.names[rank]
        return kept == (self.host, self.described, self.names)


def _begin(tag: str, state: Mapping[str, Any], contents: Contents, peers: Peers) -> _Begun:
    checked_tag(tag)
    flat = flatten(state)
    named = pieces_by_name(flat.tensors)
    pieces = [piece for _, piece in named]
    described = [
        Described(name, type_name(name, tensor.dtype), offsets, tuple(tensor.shape), shape)
        for name, (tensor, offsets, shape) in named
    ]
    # On every rank: the first of each host with its own folder writes a manifest, and a retry may take any of them.
    content, extra = None, encode(contents.extra, "extra")
    # Without the names, which are a part of the plan.
    groups = {
        prefix: [
            {key: encode(value, f"{prefix}.{GROUPS}.{key}") for key, value in group.items() if key != "params"}
            for group in inner
        ]
        for prefix, inner in flat.groups.items()
    }
    if peers.rank == 0 and contents.user_content is not ABSENT:
        buffer = io.BytesIO()
        torch.save(contents.user_content, buffer)
        content = buffer.getvalue()
    local = _Local(flat, pieces, content, groups, extra)
    return _Begun(secrets.token_hex(8), peers.host, described, _names_only(flat.groups), local)


class _Description(NamedTuple):
    """A rank's part of a state besides the tensors, all of it JSON.

    `paths` are those of `Flat`, and `groups` the options of its groups without the names of the parameters.
    """

    values: dict[str, Any]
    paths: dict[str, tuple[str, ...]]
    groups: dict[str, list[dict[str, Any]]]


class _Job:
    """One save, from the copies on: [3] and [4] of the module's picture."""

    def __init__(
        self,
        peers: Peers,
        target: Target,
        tag: str,
        save: str,
        hosts: list[str],
        on_complete: Callable[[], None] | None,
    ) -> None:
        self._peers, self._target, self._tag, self._save = peers, target, tag, save
        self._hosts, self._on_complete = hosts, on_complete
        self._time = time.time()

    def fill(self, plan: Plan, ours: _Local, mesh: dict[str, int], staged: Staged | Exception) -> None:
        """Take what is written, without the pieces."""
        self._plan, self._staged, self._mesh = plan, staged, mesh
        self._content, self._extra = ours.content, ours.extra
        self._described = _Description(ours.flat.values, ours.flat.paths, ours.groups)

    def run(self) -> None:
        peers, target = self._peers, self._target
        try:
            # In the background, too: a folder waits for the disk where others write.
            first = peers.rank == 0
            peers.agree_same(lambda: target.run(lambda: target.prepare(first)), "save", lambda _: "")
            parts = peers.agree_all(lambda: target.run(self._write), "save")
            peers.agree(lambda: self._complete(parts), "save")
        except BaseException as error:
            if not target.discard(error):
                raise

    def _write(self) -> tuple[Written, _Description]:
        rank = self._peers.rank
        if isinstance(self._staged, Exception):
            raise self._staged
        host = self._hosts[rank]
        self._target.join(rank == self._hosts.index(host))
        described = self._plan.described[rank]
        planned = files(rank, described, self._plan.chosen[rank], self._save)
        written = write(self._target.file, planned, described, self._staged, rank, host)
        if self._content is not None:
            with self._target.file(USER_CONTENT) as descriptor:
                write_all(descriptor, self._content)
            size, checksum = len(self._content), zlib.crc32(self._content)
            written.files[USER_CONTENT] = File(size, size, checksum, rank, host)
        return written, self._described

    def _complete(self, parts: list[tuple[Written, _Description]]) -> None:
        manages = self._target.run(lambda: self._target.publish(lambda: self._manifest(parts)))
        if manages and self._on_complete is not None:
            self._on_complete()

    def _manifest(self, parts: list[tuple[Written, _Description]]) -> Manifest:
        wholes = {piece.name: piece for pieces in self._plan.described for piece in pieces}
        chunks: dict[str, list[Any]] = {name: [] for name in wholes}
        paths: dict[str, tuple[str, ...]] = {}
        values: dict[str, Any] = {}
        groups = merge_groups(self._plan.names)
        # In the order of ranks, which is that of rows in most cases: a reader checks such chunks fastest.
        for written, _ in parts:
            for name, chunk in written.chunks:
                chunks[name].append(chunk)
        # The first rank last: its values and options count.
        for _, rank in reversed(parts):
            values.update(rank.values)
            paths.update(rank.paths)
            for prefix, options in rank.groups.items():
                for group, own in zip(groups[prefix], options, strict=True):
                    group.update(own)
        return Manifest(
            save=self._save,
            tag=self._tag,
            time=self._time,
            torch=str(torch.__version__),
            world_size=self._peers.size,
            mesh=self._mesh,
            files={name: file for written, _ in parts for name, file in written.files.items()},
            tensors={
                name: Tensor(whole.dtype, whole.shape, tuple(chunks[name])) for name, whole in sorted(wholes.items())
            },
            extra={
                # Only names whose keys have dots themselves: the others split at the dots.
                "paths": {name: path for name, path in paths.items() if tuple(name.split(".")) != path},
                "values": values,
                "groups": groups,
                "extra": self._extra,
            },
        )


def _names_only(groups: Mapping[str, Any]) -> dict[str, Any]:
    return {prefix: [{"params": list(group["params"])} for group in inner] for prefix, inner in groups.items()}
