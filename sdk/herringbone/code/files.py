"""Which files belong to a job's code: one rule for every backend, whether it copies them or packs them.

source_dir (or the lone script)  -+-> left out: .git, __pycache__, what the ignore files say, the jobs' own folder
dependencies, at the code's root -+-> refused: links out of the folder, files that look like secrets
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from herringbone.code.ignore import IgnoreRules
from herringbone.code.secret_files import looks_secret
from herringbone_contract.errors import InputError

if TYPE_CHECKING:
    from herringbone.code.source import SourceCode

# Neither is code, and the first can be larger than all the code.
_LEFT_OUT = (".git", "__pycache__")
_SHOWN_SECRETS = 5


def code_files(source: SourceCode, *, but_not: Path) -> dict[str, Path]:
    """Return every file of a job's code under its name in the host's `code/`, sorted.

    >>> code_files(find_source("train.py", "src", (), base=Path.cwd()), but_not=home.path)   # doctest: +SKIP
    {'train.py': PosixPath('/home/me/src/train.py')}

    `but_not` is a folder to leave out (the jobs' own, which may lie inside the source). As in git, a folder without
    files is not there. What is named, the script or a lone file among `dependencies`, comes along whatever an ignore
    file says; of two files with one name the dependency's is taken, as AWS's SDK does. Raises `InputError` for a link
    that leaves its folder, a file that looks like a secret and is not in `include_secrets`, and one that cannot be
    read.
    """
    assert source.archive is None
    assert source.folder is not None
    folder = Path(source.folder)
    named = {source.entry_point: folder / source.entry_point}
    found = dict(named)
    if source.whole_folder:
        found = {**dict(_files_below(folder, "source_dir", but_not)), **named}
    for dependency in map(Path, source.dependencies):
        if dependency.is_dir():
            inside = _files_below(dependency, "dependencies", but_not)
            found |= {f"{dependency.name}/{name}": path for name, path in inside}
        else:
            named[dependency.name] = found[dependency.name] = dependency
    told = _told_secrets(source)
    found = dict(sorted({**found, **told}.items()))
    _check_places(found)
    _check_secrets({name: path for name, path in found.items() if name not in told and named.get(name) != path})
    return found


def _told_secrets(source: SourceCode) -> dict[str, Path]:
    folders = {f"{path.name}/": path for path in map(Path, source.dependencies) if path.is_dir()}
    if source.whole_folder:
        folders[""] = Path(source.folder or "")
    told = {}
    for name in source.secrets:
        places = [folder / name[len(prefix) :] for prefix, folder in folders.items() if name.startswith(prefix)]
        path = next((place for place in places if place.is_file()), None)
        if path is None or ".." in PurePosixPath(name).parts:
            raise InputError(
                f"include_secrets: {name!r} is no file of the code; give its path inside source_dir, "
                "or 'folder/path' for one of dependencies"
            )
        told[name] = path
    return told


def _files_below(root: Path, option: str, but_not: Path) -> Iterator[tuple[str, Path]]:
    real = os.path.realpath(root)
    try:
        yield from _walk(root, "", IgnoreRules.of(root), (real,), option, but_not)
    except PermissionError as error:
        raise InputError(f"{option}: {error.filename}: no permission to read it") from None


def _walk(
    folder: Path, above: str, rules: IgnoreRules, trail: tuple[str, ...], option: str, but_not: Path
) -> Iterator[tuple[str, Path]]:
    """Yield the files of one folder and those inside it; `trail` are the true paths of the folders walked through."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            path, name, is_folder = Path(entry.path), above + entry.name, entry.is_dir()
            if entry.name in _LEFT_OUT or path == but_not:
                continue
            left_out = rules.leaves_out(name, is_folder=is_folder)
            if left_out and not (is_folder and rules.looks_inside and not entry.is_symlink()):
                continue
            real = f"{trail[-1]}/{entry.name}"
            if entry.is_symlink():
                real = os.path.realpath(entry.path)
                _check_link(path, real, trail, option)
            if is_folder:
                yield from _walk(path, f"{name}/", rules.enter(path, name), (*trail, real), option, but_not)
            elif entry.is_file():
                yield name, path


def _check_link(path: Path, real: str, trail: tuple[str, ...], option: str) -> None:
    if real in trail:
        raise InputError(f"{option}: {path} is a link to {real}, a folder that it lies in; remove it")
    if not real.startswith(f"{trail[0]}/"):
        raise InputError(
            f"{option}: {path} is a link to {real}, outside of the folder; copy the file in, give {real} in "
            "dependencies, or name the link in .herringboneignore (data belongs into a channel)"
        )


def _check_places(found: dict[str, Path]) -> None:
    for name, path in found.items():
        folder = name
        while folder := folder.rpartition("/")[0]:
            if folder in found:
                raise InputError(
                    f"dependencies: {path} needs a folder {folder!r} in the code, where {found[folder]} is a file; "
                    "rename one"
                )


def _check_secrets(found: dict[str, Path]) -> None:
    secrets = []
    for name, path in found.items():
        try:
            if looks_secret(path):
                secrets.append(name)
        except OSError as error:
            raise InputError(f"source_dir: {path} cannot be read: {error.strerror}") from None
    if secrets:
        shown = ", ".join(secrets[:_SHOWN_SECRETS])
        more = f" and {len(secrets) - _SHOWN_SECRETS} more" if len(secrets) > _SHOWN_SECRETS else ""
        raise InputError(
            f"source_dir: {shown}{more} would travel with the code, and looks like a secret; name it in "
            f".herringboneignore to leave it here, or write include_secrets={secrets[:_SHOWN_SECRETS]} to take it along"
        )
