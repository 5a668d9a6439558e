"""A disk that loses what was not synced, at any moment: the states in which a power cut may leave a folder.

The kernel stores contents and names in any order, though a rename in one folder as a whole, unless it is asked to sync
them. `PowerCut` watches the calls that a program makes while it writes below a folder, and builds from each moment the
folders that the next start may find: each name and each content that was not synced is there, or is not, or is there in
part, by chance.

    with PowerCut(folder) as cut:
        write()
    for left, over in cut.folders(tmp_path / "left"):      # `over`: the power failed after the program was done
        ...

Calls that C code makes, such as SQLite's, are seen by `PowerCut.of_program`.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

# Calls that change names or contents; each is followed by a moment at which the power may fail.
_CALLS = ("open", "write", "pwrite", "ftruncate", "fsync", "replace", "rename", "link", "symlink", "unlink", "mkdir")
# A name -> the file that it leads to, by its number. A number of None is the removal of the name.
Names = dict[str, int]
# What one call changes in one folder: a journal has both names of a rename there, or neither.
Change = dict[str, int | None]
# What a disk writes whole.
_SECTOR = 512
_PROGRAM = "import ctypes, sys; {before}; ctypes.CDLL(None).power_cut_watch(int(sys.argv[1])); {watched}"


class _Moment:
    """The tree at a moment: names and contents that are on the disk, and what may be there, too."""

    def __init__(self, cut: PowerCut) -> None:
        self.stored = {folder: dict(names) for folder, names in cut.stored.items()}
        self.pending = {folder: list(changes) for folder, changes in cut.pending.items()}
        self.synced, self.now, self.shortest = dict(cut.synced), dict(cut.now), dict(cut.shortest)
        self.is_folder = dict(cut.is_folder)


class PowerCut:
    """Watches the calls of this process that change what is below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.stored: dict[int, Names] = {}
        self.pending: dict[int, list[Change]] = {}
        self.synced: dict[int, bytes] = {}
        self.now: dict[int, bytes] = {}
        # The least size that each file has had since it was synced.
        self.shortest: dict[int, int] = {}
        self.is_folder: dict[int, bool] = {}
        self._moments: list[_Moment] = []
        self._patches: list[Any] = []
        # Open, so that no new file gets the number of a removed one.
        self._kept: list[int] = []

    def __enter__(self) -> PowerCut:
        self._look(synced=True)
        for name in _CALLS:
            self._patches.append(mock.patch.object(os, name, self._watched(name, getattr(os, name))))
            self._patches[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()
        self._note()
        for descriptor in self._kept:
            os.close(descriptor)

    @classmethod
    def of_program(cls, folder: Path, shim: Path, before: str, watched: str) -> PowerCut:
        """Watch a program in C's calls: Python code that runs `before` and then, `watched`, changes the folder."""
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
        cut = cls(folder)
        cut._look(synced=True)
        ours, its = socket.socketpair()
        program = [sys.executable, "-c", _PROGRAM.format(before=before, watched=watched), str(its.fileno())]
        with subprocess.Popen(program, env={**os.environ, "LD_PRELOAD": str(shim)}, pass_fds=[its.fileno()]) as process:
            its.close()
            with ours:
                while message := ours.recv(8, socket.MSG_WAITALL):
                    (synced,) = struct.unpack("L", message)
                    cut._sync(synced)
                    cut._note()
                    ours.send(b".")
        assert process.returncode == 0
        cut._note()
        return cut

    def folders(self, into: Path, *, tries: int = 8) -> Iterator[tuple[Path, bool]]:
        """Yield folders that a power cut may leave, `tries` for each moment; each is removed before the next."""
        chance = random.Random(7)
        for number, moment in enumerate(self._moments):
            for _ in range(tries):
                shutil.rmtree(into, ignore_errors=True)
                _build(moment, os.stat(self._folder).st_ino, into, chance)
                yield into, number == len(self._moments) - 1

    def _watched(self, name: str, call: Any) -> Any:
        def watched(*args: Any, **keywords: Any) -> Any:
            result = call(*args, **keywords)
            if name == "fsync":
                self._sync(os.fstat(args[0]).st_ino)
            self._note()
            return result

        return watched

    def _sync(self, number: int) -> None:
        self._look()
        if self.is_folder.get(number):
            for change in self.pending.pop(number, []):
                for name, leads_to in change.items():
                    if leads_to is None:
                        self.stored[number].pop(name, None)
                    else:
                        self.stored[number][name] = leads_to
        elif number in self.now:
            self.synced[number] = self.now[number]
            self.shortest[number] = len(self.now[number])

    def _note(self) -> None:
        self._look()
        self._moments.append(_Moment(self))

    def _look(self, *, synced: bool = False) -> None:
        """Compare the tree with what was seen before; each difference is a change that is not on the disk yet."""
        for top, _, _ in os.walk(self._folder):
            folder = os.stat(top).st_ino
            seen: Names = {}
            for entry in os.scandir(top):
                number = seen[entry.name] = entry.inode()
                if number not in self.is_folder and entry.is_file(follow_symlinks=False):
                    self._kept.append(_OPEN(entry.path, os.O_RDONLY))
                self.is_folder[number] = entry.is_dir(follow_symlinks=False)
                if entry.is_file(follow_symlinks=False):
                    self.now[number] = Path(entry.path).read_bytes()
                    size = len(self.now[number])
                    self.shortest[number] = min(self.shortest.get(number, size if synced else 0), size)
                    if synced:
                        self.synced[number] = self.now[number]
            self.is_folder[folder] = True
            if synced:
                self.stored[folder] = seen
                continue
            before = dict(self.stored.setdefault(folder, {}))
            changes = self.pending.setdefault(folder, [])
            for change in changes:
                before.update(change)  # type: ignore[arg-type]
            change = {name: number for name, number in seen.items() if before.get(name) != number}
            change |= {name: None for name, number in before.items() if number is not None and name not in seen}
            changes += [change] if change else []


_OPEN = os.open


def _build(moment: _Moment, folder: int, into: Path, chance: random.Random) -> None:
    into.mkdir()
    names: dict[str, int | None] = dict(moment.stored.get(folder, {}))
    for change in moment.pending.get(folder, []):
        names.update(change if chance.random() < 0.5 else {})
    for name, number in names.items():
        if number is None:
            continue
        if moment.is_folder[number]:
            _build(moment, number, into / name, chance)
        else:
            (into / name).write_bytes(_content(moment, number, chance))
            (into / name).chmod(0o600)


def _content(moment: _Moment, number: int, chance: random.Random) -> bytes:
    """Return what is left of a file: what was synced, what was written since, or a part of it."""
    now, synced = moment.now.get(number, b""), moment.synced.get(number, b"")
    if now == synced:
        return now
    # Each sector that was there all the time is the old or the new one. The rest has come, or is zeros, or is missing.
    kept = min(moment.shortest.get(number, 0), len(synced), len(now))
    sectors = [chance.choice((synced, now))[start : min(start + _SECTOR, kept)] for start in range(0, kept, _SECTOR)]
    come = chance.randrange(kept, len(now) + 1)
    rest = now[kept:come] + chance.choice((b"", bytes(len(now) - come)))
    return chance.choice((synced, now, b"".join(sectors) + rest))
