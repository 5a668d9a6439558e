"""The user's code: where it is, whether it is whole, and how it gets into a host's `code/`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import msgspec

from herringbone.estimators.inputs import local_path
from herringbone_contract.errors import ArchiveError, InputError, UnsupportedError

_ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")
_S3 = "s3://"


class SourceCode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A script and what lies around it; every path is absolute except `entry_point`, relative to `folder`.

    With `archive`, the code is a tar.gz which the supervisor unpacks, and `folder` is None; it may be an `s3://`
    address. `whole_folder` is False for a lone script, whose neighbours stay behind. `secrets` are files of the code
    that may look like secrets. `revision` names repository and commit where it was fetched from one; the folder is gone
    once the job has been submitted.
    """

    entry_point: str
    folder: str | None = None
    archive: str | None = None
    whole_folder: bool = False
    dependencies: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    revision: str | None = None

    @property
    def address(self) -> str:
        """The value of `sagemaker_submit_directory`."""
        return str(self.archive) if self.remote else f"file://{self.archive or self.folder}"

    @property
    def remote(self) -> bool:
        """Whether the code is not on this machine, and nothing of it is looked at here."""
        return self.archive is not None and self.archive.startswith(_S3)

    @property
    def arguments(self) -> dict[str, str]:
        """The estimator's arguments that name this code from any folder."""
        if self.archive is not None or self.whole_folder:
            return {"entry_point": self.entry_point, "source_dir": str(self.archive or self.folder)}
        return {"entry_point": f"{self.folder}/{self.entry_point}"}


def find_source(
    entry_point: str,
    source_dir: str | None,
    dependencies: Iterable[str],
    *,
    base: Path,
    secrets: tuple[str, ...] = (),
) -> SourceCode:
    """Say which files a job takes along.

    >>> find_source("src/train.py", None, (), base=Path("/home/me")).folder
    '/home/me/src'

    Relative paths count from `base`. Nothing is read: `check_source` does that. Raises `UnsupportedError` for an
    address of another kind than `file://` and `s3://`.
    """
    extra = tuple(str(_here("dependencies", each, base)) for each in dependencies)
    if source_dir is None:
        script = _here("entry_point", entry_point, base)
        return SourceCode(entry_point=script.name, folder=str(script.parent), dependencies=extra, secrets=secrets)
    inside = PurePosixPath(os.path.normpath(entry_point))
    if inside.is_absolute() or ".." in inside.parts:
        raise InputError(f"entry_point: {entry_point!r} must be a path inside source_dir {source_dir!r}")
    folder = source_dir if source_dir.startswith(_S3) else str(_here("source_dir", source_dir, base))
    if folder.startswith(_S3) and not folder.endswith(_ARCHIVE_SUFFIXES):
        raise UnsupportedError(f"source_dir: {folder} is no .tar.gz; pack the code, or give a folder of this machine")
    if folder.endswith(_ARCHIVE_SUFFIXES):
        if extra:
            raise UnsupportedError("dependencies: with an archive as source_dir, pack them into the archive")
        if secrets:
            raise UnsupportedError("include_secrets: an archive as source_dir travels as it is; leave this out")
        return SourceCode(entry_point=str(inside), archive=folder)
    return SourceCode(entry_point=str(inside), folder=folder, whole_folder=True, dependencies=extra, secrets=secrets)


def _here(option: str, address: str, base: Path) -> Path:
    path = local_path(address, base=base)
    if path is None:
        raise UnsupportedError(f"{option}: {address!r} is not on this machine; copy the code here and give its path")
    return path


def check_source(source: SourceCode, *, but_not: Path) -> None:
    """Raise `InputError` or `ArchiveError` unless every file is there and may travel; changes nothing.

    Of code in a bucket nothing is seen from here.
    """
    if source.remote:
        return
    for path in map(Path, source.dependencies):
        if not path.exists():
            raise InputError(f"dependencies: {path}: no such file or folder")
    if source.archive is not None:
        _check_archive(Path(source.archive), source.entry_point)
        return
    assert source.folder is not None
    folder = Path(source.folder)
    if source.whole_folder and not folder.is_dir():
        raise InputError(f"source_dir: {folder}: no such folder")
    script = folder / source.entry_point
    if not script.is_file():
        inside = " (entry_point counts from source_dir)" if source.whole_folder else ""
        hint = ""
        if not source.whole_folder and ":" in source.entry_point:
            hint = "; to name an image, write image_uri=..."
        raise InputError(f"entry_point: {script}: no such file{inside}{hint}")
    if not os.access(script, os.R_OK):
        raise InputError(f"entry_point: {script}: no permission to read it")
    from herringbone.code.files import code_files

    code_files(source, but_not=but_not)


def _check_archive(path: Path, entry_point: str) -> None:
    import tarfile

    if not path.is_file():
        raise InputError(f"source_dir: {path}: no such file")
    try:
        with tarfile.open(path, "r:gz") as archive:
            names = [_checked_member(path, member.name) for member in archive]
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ArchiveError(f"source_dir: {path} is damaged or no tar.gz: {error}; pack it again") from error
    if entry_point not in names:
        raise InputError(f"entry_point: {path} has no member {entry_point!r}")


def _checked_member(path: Path, member: str) -> str:
    name = os.path.normpath(member)
    if name.startswith("/") or name.split("/")[0] == "..":
        raise ArchiveError(f"source_dir: {path}: member {name!r} would land outside of the code folder; pack it again")
    return name


def copy_source(source: SourceCode, into: Path, *, but_not: Path) -> None:
    """Fill a host's `code/`; `but_not` is a folder to leave out (the jobs' own, which may lie inside the source).

    Nothing is copied for an archive: the supervisor unpacks it.
    """
    into.mkdir(parents=True, exist_ok=True)
    if source.archive is not None:
        return
    from herringbone.code.files import code_files

    for name, path in code_files(source, but_not=but_not).items():
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
