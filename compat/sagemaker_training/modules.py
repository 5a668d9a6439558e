"""`sagemaker_training.modules`: install the user's code with pip, and import it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from herringbone import UnsupportedError
from herringbone_entry.preparation.code import is_package
from sagemaker_training import errors, files, params

DEFAULT_MODULE_NAME = params.DEFAULT_MODULE_NAME_PARAM
_REQUIREMENTS = "requirements.txt"
_CODE_ARTIFACT = "CA_REPOSITORY_ARN"


def exists(name: str) -> bool:
    """Say whether a module can be imported; imports it."""
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def has_requirements(path: str) -> bool:
    """Say whether a folder has a requirements.txt."""
    return os.path.exists(os.path.join(path, _REQUIREMENTS))


def install(path: str, capture_error: bool = False) -> None:
    """Install the package of a folder, and its requirements.txt, into this Python. Raises `InstallModuleError`."""
    words = ["-r", _REQUIREMENTS] if has_requirements(path) else []
    _pip([".", *words], path, errors.InstallModuleError, capture_error)


def install_requirements(path: str, capture_error: bool = False) -> None:
    """Install a folder's requirements.txt into this Python. Raises `InstallRequirementsError`."""
    _pip(["-r", _REQUIREMENTS], path, errors.InstallRequirementsError, capture_error)


def install_code(path: str, capture_error: bool = False) -> None:
    """Install what a folder of code asks for: itself as a package, its requirements.txt, or nothing."""
    if is_package(Path(path)):
        install(path, capture_error)
    elif has_requirements(path):
        install_requirements(path, capture_error)


def import_module(uri: str, name: str = DEFAULT_MODULE_NAME) -> ModuleType:
    """Fetch and install the user's code, and import a module of it, again if it was imported before.

    >>> import_module("s3://bucket/code/sourcedir.tar.gz", "train")        # doctest: +SKIP

    The code's folder becomes the first of `sys.path`, so a script needs no setup.py. Raises `ImportModuleError` for
    whatever the module raises, and `InstallModuleError` or `InstallRequirementsError` where pip fails.
    """
    folder = files.code_folder(uri)
    install_code(folder)
    sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
    # Finders keep listings of folders whose files pip and this function have just changed.
    importlib.invalidate_caches()
    try:
        loaded = sys.modules.get(name)
        return importlib.import_module(name) if loaded is None else importlib.reload(loaded)
    except Exception as error:
        raise errors.ImportModuleError(f"{name}: {type(error).__name__}: {error}") from error


def _pip(words: list[str], folder: str, kind: type[errors._ProcessError], capture_error: bool) -> None:
    if os.environ.get(_CODE_ARTIFACT):
        raise UnsupportedError(
            f"{_CODE_ARTIFACT}: Herringbone asks CodeArtifact for no address; set PIP_INDEX_URL to the one that"
            " `aws codeartifact login --tool pip` prints, or unset the variable"
        )
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *words]
    done = subprocess.run(command, cwd=folder, stderr=subprocess.PIPE if capture_error else None, text=True)
    if done.stderr:
        sys.stderr.write(done.stderr)
    if done.returncode:
        raise kind(command, done.returncode, done.stderr)
