"""Fill the code folder with the user's code, and find the entry point in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from herringbone_contract.constants import Key
from herringbone_contract.errors import ContractError, InputError, UnsupportedError

Entry = Literal["script", "module", "program"]
# Linux reads no more of a line `#!`.
_MAX_INTERPRETER_BYTES = 255


class Program(NamedTuple):
    """The program of each rank: a Python script (its path), a module (its name) or an executable (its path).

    `leading` arguments come before the user's own.
    """

    entry: Entry
    name: str
    leading: tuple[str, ...] = ()

    def search_path(self, code: Path) -> list[str]:
        """Return the folders that come first on `sys.path`: the script's own, as for `python SCRIPT`, then `code`."""
        if self.entry != "script":
            return [str(code)]
        # Python resolves a script that is a link. Folders of the code keep the name that the job gave them.
        folder, root = Path(self.name).resolve().parent, code.resolve()
        inside = folder.is_relative_to(root)
        return list(dict.fromkeys([str(code / folder.relative_to(root) if inside else folder), str(code)]))


def code_of(steering: Mapping[str, Any]) -> str | None:
    """Return where the code is that `fill` takes: a file of this host, or the address of the job's code."""
    return steering.get(Key.CODE_ARCHIVE) or steering.get(Key.SUBMIT_DIRECTORY)


def fill(
    folder: Path, submit_directory: str | None, *, environ: Mapping[str, str] = os.environ, region: str | None = None
) -> None:
    """Put the user's code into `folder`, unless the folder has some already.

    `submit_directory` is a folder, a single file or a tar.gz, as a path or a file:// address; or a tar.gz as an s3://
    address: see `s3.fetch`, which takes `environ` and `region`.

    Raises `InputError` when it does not exist, `ArchiveError` when it is a damaged or malicious archive,
    `UnsupportedError` when its address is of another kind, `AwsError` when S3 does not deliver it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Backends that copy or mount the code have filled the folder already.
    if any(folder.iterdir()) or not submit_directory:
        return
    if submit_directory.startswith("s3://"):
        _fill_from_s3(folder, submit_directory, environ, region)
        return
    if "://" in submit_directory and not submit_directory.startswith("file://"):
        raise UnsupportedError(
            f"{Key.SUBMIT_DIRECTORY} {submit_directory!r}: code comes from a path, a file:// or an s3:// address"
        )
    import shutil

    from herringbone_contract.archives import unpack

    source = Path(submit_directory.removeprefix("file://"))
    if source.is_dir():
        shutil.copytree(source, folder, symlinks=True, dirs_exist_ok=True)
    elif source.name.endswith((".tar.gz", ".tgz", ".tar")):
        unpack(source, folder, shown=f"code archive {source}")
    elif source.is_file():
        shutil.copy2(source, folder / source.name)
    else:
        raise InputError(f"{Key.SUBMIT_DIRECTORY} {submit_directory!r} does not exist on this host")


def _fill_from_s3(folder: Path, address: str, environ: Mapping[str, str], region: str | None) -> None:
    import tempfile

    from herringbone_contract.archives import unpack
    from herringbone_entry.preparation import s3

    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / PurePosixPath(address).name
        s3.fetch(address, archive, environ, region)
        unpack(archive, folder, shown=f"code archive {address}")


def find_program(folder: Path, steering: Mapping[str, Any]) -> Program:
    """Find the entry point that the job names.

    `train.py` runs as a script; `run.sh` and other files run as programs; any other name is a module, of the code
    folder or of a package that its setup.py or pyproject.toml installs.

    Raises `ContractError` when the job names none, `InputError` when it does not exist.
    """
    name = steering.get(Key.PROGRAM)
    if not name:
        raise ContractError(f"hyperparameters.json has no {Key.PROGRAM}: nothing says what to run; set entry_point")
    path = folder / str(name)
    if path.is_file():
        if path.suffix == ".py":
            return Program("script", str(path))
        if os.access(path, os.X_OK):
            return Program("program", str(path))
        # An archive made on another system may have lost this bit. The file then runs as its first line says, else a
        # .sh file under /bin/sh.
        if interpreter := _interpreter(path):
            return Program("program", interpreter[0], (*interpreter[1:], str(path)))
        if path.suffix == ".sh":
            return Program("program", "/bin/sh", (str(path),))
        raise InputError(
            f"entry point {path} is neither a .py nor a .sh file, not executable (chmod +x), and has no line #!"
        )
    module = str(name).removesuffix(".py").replace("/", ".")
    if is_package(folder) or (folder / str(name) / "__main__.py").is_file():
        return Program("module", module)
    content = ", ".join(sorted(path.name for path in folder.iterdir())[:20]) or "nothing"
    raise InputError(f"entry point {name!r} is not in {folder}; there is: {content}")


def _interpreter(path: Path) -> tuple[str, ...]:
    """Return the words of a file's line `#!`, as the kernel reads them: a program and at most one argument."""
    with path.open("rb") as file:
        line = file.readline(_MAX_INTERPRETER_BYTES)
    return tuple(os.fsdecode(line[2:]).strip().split(None, 1)) if line.startswith(b"#!") else ()


def is_package(folder: Path) -> bool:
    """Say whether the code folder is a Python project to be installed."""
    return any((folder / name).is_file() for name in ("setup.py", "pyproject.toml"))
