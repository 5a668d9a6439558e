"""Select and check the files of a job's code, with one rule for every backend, whether it copies or packs them.

source_dir (or the lone script)  -+-> left out: .git, __pycache__, Python environments, files that an ignore file
dependencies, at the code's root -+             names, the jobs' folder, folders of results
                                  +-> refused: links out of the folder, files that look like secrets
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from herringbone.code.ignore import IgnoreRules
from herringbone.code.secret_files import looks_secret
from herringbone.plan.code_size import CodeSize, code_size
from herringbone.plan.links import results_of_job
from herringbone.plan.source import SourceCode
from herringbone.system.near import alternatives
from herringbone_contract import safe_tree
from herringbone_contract.errors import ArchiveError, InputError

# Neither holds code, and `.git` can be larger than all the code.
_LEFT_OUT = (".git", "__pycache__")
# A folder with one of these is a Python environment of this machine: of venv and virtualenv, and of conda.
_ENVIRONMENT_MARKS = frozenset({"pyvenv.cfg", "conda-meta"})
_SHOWN_SECRETS = 5


class _Skipped(NamedTuple):
    """Folders in the code that hold no code: the jobs' own folder, and those to which jobs write."""

    jobs: Path
    results: frozenset[Path]

    def has(self, folder: Path) -> bool:
        if folder == self.jobs or folder in self.results:
            return True
        # `output_path` may be the code's own folder: then each job has a folder in it.
        return folder.parent in self.results and any(
            Path(path).exists() for path in results_of_job(str(folder.parent), folder.name)
        )


def code_files(source: SourceCode, *, exclude: Path) -> dict[str, Path]:
    """Return every file of a job's code by its name in the host's `code/`, sorted.

    >>> code_files(find_source("train.py", "src", (), base=Path.cwd()), exclude=home.path)   # doctest: +SKIP
    {'train.py': PosixPath('/home/me/src/train.py')}

    - `exclude` is a folder to leave out: the jobs' own folder, which may lie inside the source.
    - As in git, empty folders are left out.
    - A file that the user named (the script, or a lone file among `dependencies`) is taken even if an ignore file
      names it, too.
    - If a dependency has the same name as another file, the dependency is taken, as in AWS's SDK.

    Raises `InputError` for a link that leaves its folder, for a file that looks like a secret and is not in
    `include_secrets`, and for a file that cannot be read.
    """
    files, named, _ = _collect(source, exclude)
    _check_names(files)
    # The user named these files one by one, so that nothing travels by accident.
    _check_secrets({name: path for name, path in files.items() if named.get(name) != path})
    return files


def measure_code(source: SourceCode, *, exclude: Path) -> CodeSize | None:
    """Return the size of a job's code, which `check_source` has checked; None for an archive, which travels as it is.

    >>> measure_code(find_source("train.py", "src", (), base=Path.cwd()), exclude=home.path).files   # doctest: +SKIP
    12
    """
    if source.archive is not None:
        return None
    files, _, environments = _collect(source, exclude)
    # A file may vanish meanwhile: whoever copies it says so.
    return code_size({name: path.stat().st_size for name, path in files.items() if path.exists()}, environments)


def _collect(source: SourceCode, exclude: Path) -> tuple[dict[str, Path], dict[str, Path], list[str]]:
    """Return all files of the code, those that the user named one by one, and the environments that are left out."""
    assert source.folder is not None
    folder = Path(source.folder)
    skipped = _Skipped(exclude, frozenset(map(Path, source.results)))
    environments: list[str] = []
    named = {source.entry_point: folder / source.entry_point}
    files = dict(named)
    if source.whole_folder:
        files = {**dict(_files_below(folder, "source_dir", skipped, environments)), **named}
    for dependency in map(Path, source.dependencies):
        if dependency.is_dir():
            inside = dict(_files_below(dependency, "dependencies", skipped, environments))
            files |= {f"{dependency.name}/{name}": path for name, path in inside.items()}
        else:
            named[dependency.name] = files[dependency.name] = dependency
    named |= _allowed_secrets(source)
    # Sorted, because the archive's name is the hash of its members in this order.
    return dict(sorted({**files, **named}.items())), named, environments


def check_source(source: SourceCode, *, exclude: Path) -> None:
    """Check that every file exists and may travel. Changes nothing, and cannot check code in a bucket.

    Raises `InputError` or `ArchiveError`.
    """
    if source.remote:
        return
    for path in map(Path, source.dependencies):
        if not path.exists():
            raise InputError(f"dependencies: {path}: no such file or folder{alternatives(path)}")
    if source.archive is not None:
        _check_archive(Path(source.archive), source.entry_point)
        return
    assert source.folder is not None
    folder = Path(source.folder)
    if source.whole_folder and not folder.is_dir():
        raise InputError(f"source_dir: {folder}: no such folder{alternatives(folder)}")
    script = folder / source.entry_point
    if not script.is_file():
        if script.is_dir():
            raise InputError(
                f"entry_point: {script} is a folder; name the script in it: source_dir={source.entry_point!r}, "
                "entry_point='train.py'"
                if not source.whole_folder
                else f"entry_point: {script} is a folder; name the script, as in '{source.entry_point}/train.py'"
            )
        inside = " (entry_point counts from source_dir)" if source.whole_folder else ""
        hint = ""
        if not source.whole_folder and ":" in source.entry_point:
            hint = "; to name an image, write image_uri=..."
        raise InputError(f"entry_point: {script}: no such file{inside}{hint or alternatives(script)}")
    if not os.access(script, os.R_OK):
        raise InputError(f"entry_point: {script}: no permission to read it")
    code_files(source, exclude=exclude)


def _check_archive(path: Path, entry_point: str) -> None:
    from herringbone_contract.archives import names_in

    if not path.is_file():
        raise InputError(f"source_dir: {path}: no such file")
    try:
        with path.open("rb") as file:
            # AWS's images unpack code with gzip, whatever the name says.
            if file.read(2) != b"\x1f\x8b":
                raise ArchiveError(f"source_dir: {path} is damaged or no tar.gz; pack it again")
        # To read every header, the whole file is decompressed, and so damage anywhere in it is found.
        names = [_checked_member(path, name) for name in names_in(path, shown=f"source_dir: {path}")]
    except OSError as error:
        raise InputError(f"source_dir: {path} cannot be read: {error.strerror}") from error
    if entry_point not in names:
        raise InputError(f"entry_point: {path} has no member {entry_point!r}")


def _checked_member(path: Path, member: str) -> str:
    name = os.path.normpath(member)
    if name.startswith("/") or name.split("/")[0] == "..":
        raise ArchiveError(f"source_dir: {path}: member {name!r} would land outside of the code folder; pack it again")
    return name


def located(source: SourceCode, path: Path) -> tuple[str, str]:
    """Return a folder of the code and a file's path in it without links, for `safe_tree` to open.

    >>> located(find_source("train.py", "src", (), base=Path("/me")), Path("/me/src/lib/a.py"))     # doctest: +SKIP
    ('/me/src', 'lib/a.py')

    A job may write into the folder, and so replace what was checked by a link. Such a path leads out of the folder, and
    `safe_tree` opens none.
    """
    real = os.path.realpath(path)
    folders = [source.folder if source.whole_folder else None, *source.dependencies]
    root = next((top for top in folders if top is not None and Path(top) in path.parents), None)
    # A file that the user named has no folder to stay in.
    top = os.path.dirname(real) if root is None else os.path.realpath(root)  # noqa: PTH120
    return top, os.path.relpath(real, top)


def copy_source(source: SourceCode, into: Path, *, exclude: Path) -> None:
    """Copy the code into a host's `code/`, except an archive, which the supervisor unpacks.

    `exclude` is a folder to leave out: the jobs' own folder, which may lie inside the source.
    """
    into.mkdir(parents=True, exist_ok=True)
    if source.archive is not None:
        return
    for name, path in code_files(source, exclude=exclude).items():
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # With the executable bit, which the archive keeps as well.
        safe_tree.copy(*located(source, path), target)


def _allowed_secrets(source: SourceCode) -> dict[str, Path]:
    """Return the files that `include_secrets` names, by their name in the code."""
    folders = {f"{path.name}/": path for path in map(Path, source.dependencies) if path.is_dir()}
    if source.whole_folder:
        folders[""] = Path(source.folder or "")
    allowed = {}
    for name in source.secrets:
        candidates = [folder / name[len(prefix) :] for prefix, folder in folders.items() if name.startswith(prefix)]
        path = next((candidate for candidate in candidates if candidate.is_file()), None)
        if path is None or ".." in PurePosixPath(name).parts:
            raise InputError(
                f"include_secrets: {name!r} is no file of the code; give its path inside source_dir, "
                "or 'folder/path' for one of dependencies"
            )
        allowed[name] = path
    return allowed


def _files_below(root: Path, option: str, skipped: _Skipped, environments: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder by their names; add the Python environments that are left out."""
    real = os.path.realpath(root)
    try:
        yield from _walk(root, "", IgnoreRules.of(root), (real,), option, skipped, environments)
    except PermissionError as error:
        raise InputError(f"{option}: {error.filename}: no permission to read it") from None


def _walk(
    folder: Path,
    above: str,
    rules: IgnoreRules,
    trail: tuple[str, ...],
    option: str,
    skipped: _Skipped,
    environments: list[str],
) -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder and of the folders inside it; `trail` holds the real paths of the folders above."""
    # scandir gives each entry's type with its name, which saves a system call for each file.
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path, name, is_folder = Path(entry.path), above + entry.name, entry.is_dir()
            if entry.name in _LEFT_OUT or (is_folder and skipped.has(path)):
                continue
            left_out = rules.leaves_out(name, is_folder=is_folder)
            # A pattern such as `!a/b` of .dockerignore may take a file out of a folder that is itself left out.
            if left_out and not (is_folder and rules.looks_inside and not entry.is_symlink()):
                continue
            # Before links are checked: an environment is full of links to the Python that made it, and may be one.
            if is_folder and any((path / mark).exists() for mark in _ENVIRONMENT_MARKS):
                environments.append(name)
                continue
            real = f"{trail[-1]}/{entry.name}"
            if entry.is_symlink():
                real = os.path.realpath(entry.path)
                _check_link(path, real, trail, option, name)
            if is_folder:
                inside = rules.enter(path, name)
                yield from _walk(path, f"{name}/", inside, (*trail, real), option, skipped, environments)
            # Sockets, pipes and links to nothing are left out in silence.
            elif entry.is_file():
                yield name, path


def _check_link(path: Path, real: str, trail: tuple[str, ...], option: str, name: str) -> None:
    if real in trail:
        raise InputError(f"{option}: {path} is a link to {real}, a folder that contains the link; remove it")
    if not real.startswith(f"{trail[0]}/"):
        # The whole folder, because where one link leaves it, the next ones often do as well.
        top, slash, _ = name.partition("/")
        raise InputError(
            f"{option}: {path} is a link to {real}, outside of the folder; copy the file in, give {real} in "
            f"dependencies, or write {top + slash!r} into .herringboneignore to leave "
            f"{'the folder' if slash else 'the link'} out (data belongs into a channel)"
        )


def _check_names(files: dict[str, Path]) -> None:
    """Raise `InputError` if one file needs a folder at a name that another file has."""
    for name, path in files.items():
        folder = name
        while folder := folder.rpartition("/")[0]:
            if folder in files:
                raise InputError(
                    f"dependencies: {path} needs a folder {folder!r} in the code, where {files[folder]} is a file; "
                    "rename one"
                )


def _check_secrets(files: dict[str, Path]) -> None:
    secrets = []
    for name, path in files.items():
        try:
            if looks_secret(path):
                secrets.append(name)
        except OSError as error:
            raise InputError(f"source_dir: {path} cannot be read: {error.strerror}") from None
    if secrets:
        names = ", ".join(secrets[:_SHOWN_SECRETS])
        rest = f" and {len(secrets) - _SHOWN_SECRETS} more" if len(secrets) > _SHOWN_SECRETS else ""
        raise InputError(
            f"source_dir: {names}{rest} would travel with the code, and looks like a secret; name it in "
            f".herringboneignore to leave it here, or write include_secrets={secrets[:_SHOWN_SECRETS]} to take it along"
        )
