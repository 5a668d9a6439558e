"""Unpacks a job's packed model for the user."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from herringbone.user_paths import expanded
from herringbone_contract.archives import unpack
from herringbone_contract.errors import InputError


def download_model(fetch: Callable[[Path], Path], into: Path) -> Path:
    """Unpack a model into the new folder `into`; `fetch` gets an empty folder and returns the packed model.

    >>> download_model(lambda folder: Path("output/model.tar.gz"), Path("model"))        # doctest: +SKIP
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
        model = work / "model"
        if packed.is_dir():
            # As in an archive, links stay links.
            shutil.copytree(packed, model, symlinks=True)
        else:
            model.mkdir()
            unpack(packed, model, shown=f"model {packed.name}")
        # Again, because the download may have taken hours.
        _check_free(into)
        # `into` may be an empty folder, which a rename replaces.
        model.replace(into)
    except OSError as error:
        raise InputError(f"the model cannot be unpacked into {into}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return into


def _check_free(into: Path) -> None:
    if into.is_dir() and not into.is_symlink():
        if not any(into.iterdir()):
            return
    elif not into.exists() and not into.is_symlink():
        return
    raise InputError(f"{into} already exists and is not overwritten; name a new folder")
