"""Unpack archives that are wrong in every way that the tar format allows, and look at what happened around them.

Usage: `python -m tests.campaigns.archives [--number 10000] [--seed 0]`. The last line is JSON: the archives of each
outcome, and `breaches`, which must be empty. CI runs a short form in `tests/contract/test_archives.py`.

An archive may be unpacked, in part, or refused with `ArchiveError`. It may not change anything outside of its folder,
leave a link that leads outside or anything but files, folders and links, exceed its limit, or raise another error.
"""

from __future__ import annotations

import argparse
import bz2
import collections
import contextlib
import gzip
import json
import lzma
import os
import random
import shutil
import stat
import tarfile
import tempfile
import time
from pathlib import Path

from herringbone_contract.archives import unpack
from herringbone_contract.errors import ArchiveError

LIMIT = 1 << 20
# An archive of a few kilobytes that takes longer keeps somebody waiting.
MAX_SECONDS = 5.0
# fmt: off
NAMES = [
    ".", "./", "..", "../x", "/", "/x", "//x", "", "a", "a/", "./a", "a/b", "a/b/c", "a/../x", "a/./b", "b", "b/c",
    "link", "link/x", "link/link", "a/link", "a/link/x", "up", "up/x", "\udcff", "line\nbreak", "\x1b[2J", "-rf",
    "n" * 255, "n" * 256, "d/" * 150 + "x", "d/" * 300 + "x", "x" * 5_000, "a\0b",
]
# fmt: on
TARGETS = [*NAMES, "../..", "../../outside/precious", "a/..", "link/..", "link/../..", "./..", "../into", "."]
TYPES = [
    *(tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE) * 4,
    *(tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.CONTTYPE, b"Z", b"\0"),
]
PAX = [
    {"size": "-1"},
    {"size": "-1024"},
    {"size": str(1 << 62)},
    {"size": "x"},
    {"mtime": "nan"},
    {"mtime": "inf"},
    {"mtime": "1e300"},
    {"path": "../x"},
    {"path": "/x"},
    {"linkpath": "/"},
    {"hdrcharset": "BINARY", "path": "\udcfe"},
    {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 50)},
    {"GNU.sparse.map": "0,1,x", "GNU.sparse.size": "9"},
    {"GNU.sparse.size": str(1 << 50), "GNU.sparse.map": "0,0"},
    {"comment": "c" * 100_000},
    {"uid": "-5", "gid": str(1 << 80)},
]


def random_archive(random_: random.Random) -> bytes:
    """Return an archive of up to ten members, and often damaged, compressed or cut."""
    data = bytearray()
    form = random_.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
    for _ in range(random_.randrange(10)):
        # The writer refuses some of the values.
        with contextlib.suppress(ValueError, KeyError, OverflowError, UnicodeError):
            data += _member(form, random_)
    data += bytes(1024)
    if random_.random() < 0.2:
        _damage(data, random_, headers=True)
    compress = random_.choice([bytes, bytes, gzip.compress, gzip.compress, bz2.compress, _xz])
    data = bytearray(compress(bytes(data)))
    if random_.random() < 0.2:
        _damage(data, random_, headers=False)
    if random_.random() < 0.1:
        del data[random_.randrange(len(data) + 1) :]
    return random_.randbytes(600) if random_.random() < 0.01 else bytes(data)


def _xz(data: bytes) -> bytes:
    # The default preset takes 94 MB for each archive.
    return lzma.compress(data, preset=0)


def _member(form: int, random_: random.Random) -> bytes:
    member = tarfile.TarInfo(random_.choice(NAMES))
    member.type = random_.choice(TYPES)
    member.linkname = random_.choice(TARGETS)
    member.mode = random_.choice([0o644, 0, 0o7777, 0o4755])
    member.mtime = random_.choice([0, 1, -1, 1 << 33, 1 << 60])
    if random_.random() < 0.1:
        member.pax_headers = dict(random_.choice(PAX))
    text = b""
    if member.isreg():
        text = random_.randbytes(random_.choice([0, 1, 511, 512, 513, 3_000]))
        # A size that the content does not have moves all later headers, or lets them be read as content.
        member.size = random_.choice([len(text)] * 40 + [0, 1 << 40])
    return member.tobuf(form, "utf-8", "surrogateescape") + text + bytes(-len(text) % tarfile.BLOCKSIZE)


def _damage(data: bytearray, random_: random.Random, *, headers: bool) -> None:
    for _ in range(random_.randrange(1, 6)):
        if not data:
            return
        place = random_.randrange(len(data))
        data[place] = random_.randrange(256)
        block = place - place % 512
        if headers and random_.random() < 0.8 and block + 512 <= len(data):
            # A header with the right checksum gets past the first check.
            data[block + 148 : block + 156] = b" " * 8
            data[block + 148 : block + 156] = b"%06o\0 " % sum(data[block : block + 512])


def trial(data: bytes, folder: Path) -> tuple[str, list[str]]:
    """Unpack an archive into `folder/into`; return the outcome and the breaches."""
    into = folder / "into"
    into.mkdir(mode=0o750)
    archive = folder / "archive"
    archive.write_bytes(data)
    before = _state(folder)
    num_refused = 0

    def refuse(_name: str, _reason: str) -> None:
        nonlocal num_refused
        num_refused += 1

    start, breaches = time.monotonic(), []
    try:
        unpack(archive, into, shown="archive", limit=LIMIT, refused=refuse)
        outcome = "in part" if num_refused else "whole"
    except ArchiveError:
        outcome = "refused"
    # Any other error is a breach, whatever its class.
    except Exception as error:  # noqa: BLE001
        outcome = "error"
        breaches.append(f"{type(error).__name__}: {error}")
    if time.monotonic() - start > MAX_SECONDS:
        breaches.append(f"it took {time.monotonic() - start:.1f} s")
    if _state(folder) != before:
        breaches.append("something outside changed, or the folder itself")
    return outcome, breaches + _breaches_inside(into)


def _state(folder: Path) -> list[tuple[object, ...]]:
    """Return what an archive may not change: everything but the content of `into`."""
    states: list[tuple[object, ...]] = []
    for path in (folder, *sorted(folder.rglob("*"))):
        inside = path.relative_to(folder).parts
        if inside[:1] != ("into",):
            state = path.lstat()
            states.append((inside, state.st_mode, state.st_mtime_ns, state.st_size))
        elif inside == ("into",):
            states.append((inside, path.lstat().st_mode))
    return states


def _breaches_inside(into: Path) -> list[str]:
    breaches, num_bytes = [], 0
    root = os.path.realpath(into)
    for inside, folders, files in os.walk(into):
        for name in (*folders, *files):
            path = os.path.join(inside, name)
            state = os.lstat(path)
            if stat.S_ISLNK(state.st_mode):
                if not f"{os.path.realpath(path)}/".startswith(f"{root}/"):
                    breaches.append(f"{path} leads to {os.readlink(path)}")
            elif not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
                breaches.append(f"{path} is a special file")
            elif stat.S_ISREG(state.st_mode):
                num_bytes += state.st_size
                if state.st_mode & 0o7022:
                    breaches.append(f"{path} has mode {state.st_mode:o}")
    if num_bytes > LIMIT:
        breaches.append(f"{num_bytes} bytes")
    return breaches


def campaign(number: int, seed: int) -> dict[str, object]:
    """Unpack `number` archives; return the number of each outcome, and the breaches with their archives' seeds."""
    outcomes: collections.Counter[str] = collections.Counter()
    breaches = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "outside").mkdir()
        (Path(scratch) / "outside" / "precious").write_text("precious")
        for position in range(number):
            own_seed = f"{seed}/{position}"
            outcome, wrong = trial(random_archive(random.Random(own_seed)), Path(scratch))
            outcomes[outcome] += 1
            breaches += [f"{own_seed}: {text}" for text in wrong]
            shutil.rmtree(Path(scratch) / "into")
    seconds = round(time.monotonic() - start, 1)
    return {"archives": number, "seed": seed, "seconds": seconds, **outcomes, "breaches": breaches[:50]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    report = campaign(arguments.number, arguments.seed)
    print(json.dumps(report))
    return bool(report["breaches"])


if __name__ == "__main__":
    raise SystemExit(main())
