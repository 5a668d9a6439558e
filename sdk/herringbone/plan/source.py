"""Locate the user's code: a lone script, a folder or an archive, with its dependencies."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import msgspec

from herringbone.plan.inputs import local_path
from herringbone.plan.texts import check_path
from herringbone_contract.errors import InputError, UnsupportedError

_ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")
_S3 = "s3://"


class SourceCode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The code of a job. Every path is absolute, except `entry_point`, which is relative to `folder`.

    - `archive` is a tar.gz that the supervisor unpacks: a path or an `s3://` address. `folder` is None then.
    - `whole_folder` is False for a lone script: the other files of its folder do not belong to the job.
    - `secrets` are the files of the code that may travel although they look like secrets.
    - `results` are folders in the code, or the code's own folder, to which jobs write. What they hold is no code.
    - `revision` is `repository@commit` for code from git. Its `folder` is deleted once the job has been submitted.
    """

    entry_point: str
    folder: str | None = None
    archive: str | None = None
    whole_folder: bool = False
    dependencies: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    revision: str | None = None

    @property
    def address(self) -> str:
        """The value of `sagemaker_submit_directory`."""
        return str(self.archive) if self.remote else f"file://{self.archive or self.folder}"

    @property
    def remote(self) -> bool:
        """True if the code is in a bucket, so that this machine cannot check it."""
        return self.archive is not None and self.archive.startswith(_S3)

    @property
    def arguments(self) -> dict[str, str]:
        """The estimator's arguments that name this code, valid from any current folder."""
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
    """Return the code that the estimator's arguments name.

    >>> find_source("src/train.py", None, (), base=Path("/home/me")).folder
    '/home/me/src'

    Relative paths count from `base`. This function reads no file: `herringbone.code.files.check_source` does. Raises
    `UnsupportedError` for an address that is neither `file://` nor `s3://`.
    """
    # `or ()`: Python 3.10 makes another empty tuple here, which msgspec would not take for the default.
    extra = tuple(str(_path_on_this_machine("dependencies", path, base)) for path in dependencies) or ()
    if source_dir is None:
        script = _path_on_this_machine("entry_point", entry_point, base)
        return SourceCode(entry_point=script.name, folder=str(script.parent), dependencies=extra, secrets=secrets)
    # After normpath, `..` is left only in a path that leaves the folder.
    inside = PurePosixPath(os.path.normpath(entry_point))
    if inside.is_absolute() or ".." in inside.parts:
        raise InputError(f"entry_point: {entry_point!r} must be a path inside source_dir {source_dir!r}")
    folder = source_dir if source_dir.startswith(_S3) else str(_path_on_this_machine("source_dir", source_dir, base))
    if folder.startswith(_S3) and not folder.endswith(_ARCHIVE_SUFFIXES):
        raise UnsupportedError(f"source_dir: {folder} is no .tar.gz; pack the code, or give a folder of this machine")
    if folder.endswith(_ARCHIVE_SUFFIXES):
        if extra:
            raise UnsupportedError("dependencies: with an archive as source_dir, pack them into the archive")
        if secrets:
            raise UnsupportedError("include_secrets: an archive as source_dir travels as it is; leave this out")
        return SourceCode(entry_point=str(inside), archive=folder)
    return SourceCode(entry_point=str(inside), folder=folder, whole_folder=True, dependencies=extra, secrets=secrets)


def _path_on_this_machine(option: str, address: str, base: Path) -> Path:
    path = local_path(address, base=base)
    if path is None:
        raise UnsupportedError(f"{option}: {address!r} is not on this machine; copy the code here and give its path")
    check_path(option, str(path))
    return path
