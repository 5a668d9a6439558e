"""Show a host's own tree at `/opt/ml` to the processes of the host, through a mount namespace of their own.

A script that names `/opt/ml` would otherwise read and write the machine's own `/opt/ml`, which all jobs share:

    the machine                 the host's processes
    /opt/conda                  /opt          a tmpfs, read-only
    (no /opt/ml)                /opt/conda    the machine's
                                /opt/ml       <job>/hosts/algo-1/ml

Only Linux has such namespaces, and containers and hardened systems often refuse them. A rank whose `/opt/ml` is not its
own tree therefore refuses to open files there (`herringbone_entry.ranks.rank`).
"""

from __future__ import annotations

import json
import os
import sys

from herringbone.system.namespaces import BIND, NEW_MOUNTS, READ_ONLY, RECURSIVE, REMOUNT, mount, unshare
from herringbone_contract.constants import DEFAULT_BASE, Key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MARK = DEFAULT_BASE.encode()
_PARENT = os.path.dirname(DEFAULT_BASE)  # noqa: PTH120 - pathlib costs the controller milliseconds
# More files than this are not searched: then the script is taken to name `/opt/ml`.
_MOST_FILES, _MOST_BYTES = 500, 4 << 20
_ARCHIVES = (".tar.gz", ".tgz", ".zip", ".whl", ".egg")
# The name of an archive in a tar, as its header or its extended header ends it.
_ARCHIVES_IN_TAR = tuple(f"{ending}{end}".encode() for ending in _ARCHIVES for end in "\0\n")
_PIECE_BYTES = 1 << 16
# To zlib: the format of gzip, or of zlib.
_GZIP_OR_ZLIB = 47
# More entries of /opt than this are not mounted one by one.
_MOST_ENTRIES = 200


def names_opt_ml(base: str, settings: Iterable[str]) -> bool:
    """Return whether the code or the hyperparameters of a host, or one of `settings`, contain `/opt/ml`.

    >>> names_opt_ml("/jobs/a/hosts/algo-1/ml", ["--out=/opt/ml/model"])
    True

    The packed code that a supervisor unpacks is searched, too. An archive in the folder, or in the packed code, counts
    as code that contains it.
    """
    if any(DEFAULT_BASE in setting for setting in settings):
        return True
    left = _MOST_BYTES
    for number, path in enumerate(_files(f"{base}/code", f"{base}/input/config")):
        if number >= _MOST_FILES or path.endswith(_ARCHIVES):
            return True
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs the controller milliseconds
                content = file.read(left)
        except OSError:
            continue
        left -= len(content)
        if _MARK in content or left <= 0:
            return True
    packed = _packed_code(base)
    return packed is not None and _tar_names_opt_ml(packed, left)


def _packed_code(base: str) -> str | None:
    """Return the archive of the job's code on this machine, None for code that is in the tree already."""
    try:
        with open(f"{base}/input/config/hyperparameters.json", "rb") as file:  # noqa: PTH123
            values = json.loads(file.read())
            path = json.loads(values.get(Key.CODE_ARCHIVE) or values.get(Key.SUBMIT_DIRECTORY, "null"))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return path if isinstance(path, str) and os.path.isfile(path) else None  # noqa: PTH113


def _tar_names_opt_ml(path: str, limit: int) -> bool:
    """Return whether the content of a packed tar has the mark; so does one with more than `limit` bytes, or damage."""
    import zlib

    unpacker, end = zlib.decompressobj(_GZIP_OR_ZLIB), b""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            # The text of a tar's members stands in it as it is, so that no member needs to be parsed.
            while not unpacker.eof and (piece := unpacker.unconsumed_tail or file.read(_PIECE_BYTES)):
                content = end + unpacker.decompress(piece, _PIECE_BYTES)
                limit -= len(content)
                if limit <= 0 or _MARK in content or any(name in content for name in _ARCHIVES_IN_TAR):
                    return True
                # The mark may lie across two pieces.
                end = content[-len(_MARK) :]
    except (OSError, zlib.error):
        return True
    return not unpacker.eof


def is_possible(base: str, needed: Iterable[str]) -> bool:
    """Return whether `enter(base)` works here, by trying it in a child; `needed` are paths that must stay visible."""
    below = f"{DEFAULT_BASE}/"
    if sys.platform != "linux" or any(os.path.realpath(path).startswith(below) for path in (base, *needed)):
        return False
    # A child, because a process whose user namespace was made and whose mount was refused could not go back.
    child = os.fork()
    if child == 0:
        try:
            enter(base)
        except BaseException:  # noqa: BLE001 - the exit code is the answer
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def enter(base: str) -> None:
    """Move this process into a mount namespace in which `/opt/ml` is `base`; its later children inherit it.

    Raises `OSError` where the system does not allow it.
    """
    unshare(NEW_MOUNTS)
    if not os.path.isdir(DEFAULT_BASE):  # noqa: PTH112
        _cover_parent()
        mount(base, DEFAULT_BASE, BIND | RECURSIVE)
        # A file that the script writes to /opt itself would be lost with the job, so that fails.
        mount(None, _PARENT, REMOUNT | BIND | READ_ONLY)
    else:
        mount(base, DEFAULT_BASE, BIND | RECURSIVE)


def _cover_parent() -> None:
    """Mount a tmpfs over /opt that has all of its entries, and an empty folder `ml`."""
    with os.scandir(_PARENT) as entries:
        kinds = {entry.path: entry.is_dir(follow_symlinks=False) for entry in entries}
    if len(kinds) > _MOST_ENTRIES:
        raise OSError(f"{_PARENT} has {len(kinds)} entries")
    # Read and opened first: the tmpfs hides the entries, and /proc still leads to them.
    links = {path: os.readlink(path) for path in kinds if os.path.islink(path)}  # noqa: PTH114, PTH115
    handles = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in kinds if path not in links}
    mount("tmpfs", _PARENT, 0, b"tmpfs", "mode=755,size=1m")
    for path, link in links.items():
        os.symlink(link, path)  # noqa: PTH211
    for path, handle in handles.items():
        if kinds[path]:
            os.mkdir(path)  # noqa: PTH102
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        mount(f"/proc/self/fd/{handle}", path, BIND | RECURSIVE)
        os.close(handle)
    os.mkdir(DEFAULT_BASE)  # noqa: PTH102


def _files(*folders: str) -> Iterator[str]:
    for folder in folders:
        for inside, _, names in os.walk(folder):
            yield from (f"{inside}/{name}" for name in names)
