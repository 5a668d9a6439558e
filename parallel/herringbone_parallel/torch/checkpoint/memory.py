"""The checkpoints that holders keep in memory: which is the newest, and reading it from wherever its files are.

own holder's list ---> all ranks have all lists ---> the same order of saves on every rank
                                                      [1] in memory, if it is newer than the one on disk
                                                      [2] on disk
a save that some rank finds damaged or cut is passed over on all ranks, and never tried again
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from herringbone_contract.checkpoint import verification
from herringbone_contract.checkpoint.manifest import MANIFEST, Manifest, parse
from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import ParallelError
from herringbone_contract.memory import link
from herringbone_parallel.torch.checkpoint.peers import Peers, attempt
from herringbone_parallel.torch.checkpoint.reading import DamagedError, Reader

# The step of no checkpoint, and that of one whose `extra` does not say it: nothing in memory counts as newer.
_NONE, _UNKNOWN = -1, 1 << 62
# Where a save of this name would be in a list of damaged ones, next to tags of folders.
_PREFIX = "memory:"


class Kept(NamedTuple):
    """A save in memory: its step, and the hosts whose holders have each of its files."""

    save: str
    step: int
    hosts: dict[str, list[str]]

    @property
    def key(self) -> str:
        """The name of the save among those that are passed over."""
        return _PREFIX + self.save


def holder() -> str | None:
    """Return the path of this host's holder; None where the job has none."""
    return os.environ.get(HostVariable.HOLDER) or None


def listed(path: str) -> list[tuple[str, int, str]]:
    """Return the save, step and name of each file at this host's holder; nothing where it does not answer."""
    try:
        descriptor = link.ask(path, {"do": "list"})[1]
        assert descriptor is not None
        with _from_start(descriptor) as stream:
            return [(str(save), int(step), str(name)) for save, step, name in json.loads(stream.read() or b"[]")]
    except (OSError, ValueError, TypeError):
        return []


def whole(lists: list[tuple[str, list[tuple[str, int, str]]]]) -> list[Kept]:
    """Return the saves of which a holder has the manifest, the newest first; `lists` are those of hosts. Pure.

    >>> whole([("a", [("1", 10, "rank-0"), ("1", 10, "manifest.json")]), ("b", [("1", 10, "rank-0"), ("2", 20, "x")])])
    [Kept(save='1', step=10, hosts={'rank-0': ['a', 'b'], 'manifest.json': ['a']})]
    """
    saves: dict[str, Kept] = {}
    for host, files in lists:
        for save, step, name in files:
            hosts = saves.setdefault(save, Kept(save, step, {})).hosts.setdefault(name, [])
            if host not in hosts:
                hosts.append(host)
    return sorted((one for one in saves.values() if MANIFEST in one.hosts), key=lambda one: (-one.step, one.save))


class Newest(NamedTuple):
    """The reader of the newest checkpoint, and a text for the log; `kept` is None for one on disk."""

    reader: Reader
    kept: Kept | None
    text: str


def newest(folder: Path, passed: Mapping[str, str], peers: Peers) -> Newest | None:
    """Return the newest checkpoint in memory or on disk, the same on every rank; all of them must call.

    Returns None where memory has none that is left, and the disk none at all. Raises `DamagedError` on a rank that
    finds a file missing or damaged, and another error on the others.
    """
    path = holder()
    if path is None or not peers.only_savers:
        return Newest(agreed(lambda: Reader.find(folder, None, passed), peers), None, "")
    damaged = {tag: reason for tag, reason in passed.items() if not tag.startswith(_PREFIX)}
    on_disk = attempt(lambda: Reader.find(folder, None, damaged))
    disk_step = _NONE if on_disk.failure is not None else _step(on_disk.result.manifest)
    gathered = peers.gather((peers.host, listed(path), disk_step, verification.has_any(folder)))
    # Of the rank that has the least: a host that is new may have no folder of the others.
    disk_step = min(step for _, _, step, _ in gathered)
    saves = [one for one in whole([(host, files) for host, files, _, _ in gathered]) if one.key not in passed]
    # At the same step, what the user keeps.
    if saves and saves[0].step > disk_step:
        reader = agreed(lambda: _reader(path, saves[0]), peers)
        return Newest(reader, saves[0], _text(saves[0], reader.manifest, disk_step, passed))
    if not any(has for *_, has in gathered):
        return None
    peers.share(on_disk._replace(result=None), "resume")
    return Newest(on_disk.result, None, _disk_text(disk_step, saves, passed))


def agreed(call: Callable[[], Reader], peers: Peers) -> Reader:
    """Return this rank's reader, where all ranks have one; raise on all ranks otherwise."""
    tried = attempt(call)
    # Readers themselves do not travel.
    peers.share(tried._replace(result=None), "resume")
    reader: Reader = tried.result
    return reader


def has_any(peers: Peers) -> bool:
    """Report whether this host's holder has the manifest of a save."""
    path = holder()
    return path is not None and peers.only_savers and any(name == MANIFEST for _, _, name in listed(path))


def settle(found: Newest | None, peers: Peers) -> None:
    """Forget all saves but the one that the training has resumed from; get back what was lost with a holder.

    Without this, a step that comes again would be older than one of the attempt before.
    """
    path = holder()
    if path is None or not peers.only_savers:
        return
    kept = None if found is None else found.kept
    if kept is None or found is None:
        link.forget(path)
        return
    files = found.reader.manifest.files
    mine = {name: kept.hosts[name] for name, file in files.items() if file.host == peers.host and name in kept.hosts}
    names = {**mine, MANIFEST: kept.hosts[MANIFEST]}
    # A holder that cannot get them back has fewer copies; the next save makes good for that.
    attempt(lambda: link.ask(path, {"do": "keep", "save": kept.save, "step": kept.step, "names": names}))


def _reader(path: str, kept: Kept) -> Reader:
    with _opened(path, kept, MANIFEST) as stream:
        text = stream.read() or b""
    try:
        manifest = parse(text, f"{MANIFEST} of step {kept.step} in memory")
    except ParallelError as error:
        raise DamagedError(kept.key, str(error)) from error
    if missing := [name for name in manifest.files if name not in kept.hosts]:
        hosts = sorted({manifest.files[name].host for name in missing})
        raise DamagedError(kept.key, f"step {kept.step} in memory is cut: no holder has the part of {', '.join(hosts)}")
    return Reader.of_files(
        Path(f"<memory of step {kept.step}>"), manifest, kept.key, partial(_checked, path, kept, manifest)
    )


def _checked(path: str, kept: Kept, manifest: Manifest, name: str) -> io.FileIO:
    """Open a file of a save, and compare its size and its header's checksum; values have checksums of their own."""
    stream, file = _opened(path, kept, name), manifest.files[name]
    size = os.fstat(stream.fileno()).st_size
    if size != file.bytes or zlib.crc32(os.pread(stream.fileno(), file.head_bytes, 0)) != file.head_crc32:
        stream.close()
        raise DamagedError(kept.key, f"{name} of step {kept.step} in memory is damaged: {size} of {file.bytes} bytes")
    return stream


def _opened(path: str, kept: Kept, name: str) -> io.FileIO:
    try:
        request = {"do": "get", "save": kept.save, "name": name, "hosts": kept.hosts.get(name, [])}
        descriptor = link.ask(path, request)[1]
        assert descriptor is not None
    except OSError as error:
        raise DamagedError(kept.key, f"{name} of step {kept.step} in memory is gone: {error}") from error
    return _from_start(descriptor)


def _from_start(descriptor: int) -> io.FileIO:
    # A place of its own in the file: the descriptor's is that of all who have it.
    with io.FileIO(descriptor):
        return io.FileIO(f"/proc/self/fd/{descriptor}")


def _step(manifest: Manifest) -> int:
    extra: Any = manifest.extra.get("extra")
    step = extra.get("step") if isinstance(extra, dict) else None
    return step if type(step) is int else _UNKNOWN


def _text(kept: Kept, manifest: Manifest, disk_step: int, passed: Mapping[str, str]) -> str:
    lost = sorted({file.host for name, file in manifest.files.items() if file.host not in kept.hosts[name]})
    disk = "the disk has none" if disk_step == _NONE else f"the disk has step {disk_step}"
    where = (
        f"the parts of {', '.join(lost)} from a neighbour's memory" if lost else "each host's part from its own memory"
    )
    return f"step {kept.step} from memory, {where}; {disk}{_reasons(passed)}"


def _disk_text(disk_step: int, saves: list[Kept], passed: Mapping[str, str]) -> str:
    reason = f"memory has step {saves[0].step}" if saves else "no whole one is in memory"
    step = "a checkpoint" if disk_step == _UNKNOWN else f"step {disk_step}"
    return f"{step} from disk: {reason}{_reasons(passed)}"


def _reasons(passed: Mapping[str, str]) -> str:
    return "".join(f"; passed over: {reason}" for reason in passed.values())
