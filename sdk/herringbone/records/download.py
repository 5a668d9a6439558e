"""Bring a part of a job's results into a folder of the user's: the model, the output, the checkpoints or the logs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Literal

from herringbone.records.home import JobFolder, find_home
from herringbone.records.index import JobIndex
from herringbone.records.logs import LogLine
from herringbone.system.user_paths import expanded
from herringbone_contract.archives import unpack
from herringbone_contract.errors import InputError

Part = Literal["model", "output", "checkpoints", "logs"]
PARTS: tuple[Part, ...] = ("model", "output", "checkpoints", "logs")


def download(part: Part, fetch: Callable[[Path], Path], into: Path) -> Path:
    """Unpack a part into the new folder `into`; `fetch` gets an empty folder and returns an archive or a folder.

    >>> download("model", lambda folder: Path("output/model.tar.gz"), Path("model"))        # doctest: +SKIP
    PosixPath('/home/me/model')

    The work is done in a hidden folder next to `into`, which is renamed at the end: an interrupted download leaves
    nothing incomplete. Raises `InputError` when `into` exists and is not an empty folder, `ArchiveError` for an archive
    that is damaged, reaches outside its folder or is larger than the disk's free space.
    """
    into = expanded(into).absolute()
    _check_free(into)
    into.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{into.name}-", dir=into.parent))
    try:
        (fetched := work / "fetched").mkdir()
        packed = fetch(fetched)
        unpacked = work / "unpacked"
        if packed.is_relative_to(fetched) and packed.is_dir():
            unpacked = packed
        elif packed.is_dir():
            # As in an archive, links stay links.
            shutil.copytree(packed, unpacked, symlinks=True)
        else:
            unpacked.mkdir()
            unpack(packed, unpacked, shown=f"{part} {packed.name}")
        # Again, because the download may have taken hours.
        _check_free(into)
        # `into` may be an empty folder, which a rename replaces.
        unpacked.replace(into)
    except OSError as error:
        raise InputError(f"the {part} cannot be brought into {into}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return into


def write_logs(lines: Iterable[LogLine], hosts: Collection[str], folder: Path) -> Path:
    """Write the lines of a log into one file per host, in the form of the files in a job's folder.

    Lines of none of the `hosts`, which foreign images print, get a file of their own, `others.log`.
    """
    logs = JobFolder(folder).logs
    logs.mkdir()
    with ExitStack() as stack:
        files: dict[str, IO[str]] = {}
        for line in lines:
            host = line.host if line.host in hosts else "others"
            if host not in files:
                path = JobFolder(folder).log(host)
                files[host] = stack.enter_context(path.open("w", encoding="utf-8", errors="backslashreplace"))
            files[host].write(f"{line.time:%Y-%m-%dT%H:%M:%S.%fZ} {line.prefix} {line.text}\n")
    return logs


def _check_free(into: Path) -> None:
    if into.is_dir() and not into.is_symlink():
        if not any(into.iterdir()):
            return
    elif not into.exists() and not into.is_symlink():
        return
    raise InputError(f"{into} already exists and is not overwritten; name a new folder")


def removed_log(name: str) -> str:
    """Return what to say about a job whose log `herringbone rm --keep-model` has removed; "" for all others.

    >>> removed_log("digits-1")                                      # doctest: +SKIP
    ''
    """
    home = find_home()
    folder = home.job(name)
    # A folder without logs is also that of a job that is being submitted.
    if not folder.path.is_dir() or folder.logs.exists() or not JobIndex(home.index).get(name).done:
        return ""
    return (
        f"job {name}: its log was removed by `herringbone rm --keep-model`; `herringbone describe {name}` has the last "
        "values of its metrics"
    )


def refuse_removed_log(name: str) -> None:
    """Raise `InputError` for a job whose log was removed."""
    if removed := removed_log(name):
        raise InputError(removed)
