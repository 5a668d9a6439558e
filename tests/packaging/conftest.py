"""Fixtures: the sdist and the wheel of this tree, built once, and environments that have one of them installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

# The Python of an environment, and the pip that installs there.
Installation = tuple[Path, "subprocess.Popen[bytes]"]


class Archives(NamedTuple):
    """The two files that a release uploads."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    """Return the sdist, and the wheel that was built from it, as `python -m build` makes them."""
    folder = tmp_path_factory.mktemp("archives")
    # Without isolation, which installs hatchling twice. The installation of the sdist below builds in isolation.
    command = [sys.executable, "-m", "build", "--quiet", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Archives(sdist, wheel)


@pytest.fixture(scope="session")
def installations(archives: Archives, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Installation]:
    """Start to install both archives at the same time: pip mostly waits for the package index."""
    return {archive.suffix: install(archive, tmp_path_factory.mktemp(archive.suffix[1:])) for archive in archives}


@pytest.fixture(scope="session")
def installed(installations: dict[str, Installation]) -> Path:
    """Return the Python of a new environment that has the wheel and what it depends on, and nothing else."""
    return finish(installations[".whl"])


@pytest.fixture(scope="session")
def installed_from_source(installations: dict[str, Installation]) -> Path:
    """Return the Python of a new environment that has the sdist, built there, and what it depends on."""
    return finish(installations[".gz"])


def install(archive: Path, folder: Path) -> Installation:
    """Install an archive into a new environment. pip installs from outside, so that making the environment is cheap."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    # With the byte code, as users install it: a test measures it. CI's own environments do without.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
    return python, subprocess.Popen([*pip, "--compile", "-c", ROOT / "scripts" / "constraints.txt", archive])


def finish(installation: Installation) -> Path:
    """Wait until pip has ended, and return the environment's Python."""
    python, pip = installation
    assert pip.wait() == 0
    return python
