"""Read lock files, which fix the version and the hashes of every package in an image.

A lock is a requirements file with hashes, as `uv pip compile --universal --generate-hashes` writes it: one file serves
every Python, because its lines have markers. `scripts/lock_images.py` updates ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")
_INDEX = "--extra-index-url"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel in a user's wheelhouse."""

    file: str
    sha256: str

    @property
    def name(self) -> str:
        """The package's name, in the form that indexes compare."""
        # The wheel format writes `_` for each `-` in a name, so the first `-` ends the name.
        return canonical(self.file.split("-")[0])

    @property
    def version(self) -> str:
        """The version in the file's name."""
        # A file saved under the last part of its address may keep the address's escape of `+`.
        return self.file.split("-")[1].replace("%2B", "+")


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file's text, with access to its content.

    >>> lock = Lock("--extra-index-url https://x\\ntorch==2.13.0+cpu \\\\\\n    --hash=sha256:00\\n")
    >>> lock.version("torch")
    '2.13.0+cpu'
    """

    text: str

    @property
    def pins(self) -> dict[str, set[str]]:
        """The versions of each package; a package has several if they depend on the Python."""
        pins: dict[str, set[str]] = {}
        for line in self.text.splitlines():
            if pin := _PIN.match(line):
                pins.setdefault(canonical(pin[1]), set()).add(pin[2])
        return pins

    def version(self, name: str) -> str | None:
        """Return the locked version of a package, None if the lock has no version or several."""
        versions = self.pins.get(canonical(name), set())
        return next(iter(versions)) if len(versions) == 1 else None

    @property
    def index(self) -> str | None:
        """The index with packages that PyPI does not have, None without one."""
        return next((line.split()[1] for line in self.text.splitlines() if line.startswith(_INDEX)), None)

    def with_wheels(self, wheels: Iterable[Wheel], framework: str) -> Lock:
        """Return the lock for a build with a user's own wheels, which the user trusts: their hashes are added.

        Each line gets the hashes of the wheels of its version. If the framework is among the wheels, its own index is
        left out. If all packages are, every index is left out, so that the build needs no network.
        """
        # A version can have several wheels, one for each Python or processor; pip accepts any of the hashes.
        hashes: dict[tuple[str, str], list[str]] = {}
        for wheel in wheels:
            hashes.setdefault((wheel.name, wheel.version), []).append(wheel.sha256)
        names = {name for name, _ in hashes}
        lines = ["--no-index"] if names and self.pins.keys() <= names else []
        for line in self.text.splitlines():
            if line.startswith(_INDEX) and canonical(framework) in names:
                continue
            pin = _PIN.match(line)
            lines.append(_with_hashes(line, hashes.get((canonical(pin[1]), pin[2]), []) if pin else []))
        return Lock("\n".join(lines) + "\n")


def canonical(name: str) -> str:
    """Return a package's name in the form that indexes compare.

    >>> canonical("ML_dtypes")
    'ml-dtypes'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def usable(wheels: Mapping[str, Path], lock: Lock) -> dict[str, Path]:
    """Return the wheels, by file name, whose package and version are in the lock."""
    pins = lock.pins
    locked = {}
    for file, path in wheels.items():
        wheel = Wheel(file, "")
        if wheel.version in pins.get(wheel.name, ()):
            locked[file] = path
    return locked


def _with_hashes(line: str, hashes: Iterable[str]) -> str:
    missing = [f"--hash=sha256:{digest}" for digest in hashes]
    if not missing:
        return line
    # A line with hashes of its own ends in a backslash, and continues after the added ones.
    head, goes_on = (line[:-1].rstrip(), " \\") if line.endswith("\\") else (line, "")
    return " \\\n    ".join([head, *missing]) + goes_on
