"""Lock files: which version and which bytes of every package go into an image.

A lock is a requirements file with hashes, as `uv pip compile --universal --generate-hashes` writes it: one file serves
every Python, its lines carry markers. `scripts/lock_images.py` renews ours.
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
        return canonical(self.file.split("-")[0])

    @property
    def version(self) -> str:
        return self.file.split("-")[1].replace("%2B", "+")


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file's text, and what it says.

    >>> lock = Lock("--extra-index-url https://x\\ntorch==2.13.0+cpu \\\\\\n    --hash=sha256:00\\n")
    >>> lock.version("torch")
    '2.13.0+cpu'
    """

    text: str

    @property
    def pins(self) -> dict[str, set[str]]:
        """Each package's versions; several where they depend on the Python."""
        found: dict[str, set[str]] = {}
        for line in self.text.splitlines():
            if pin := _PIN.match(line):
                found.setdefault(canonical(pin[1]), set()).add(pin[2])
        return found

    def version(self, name: str) -> str | None:
        """Return the one version that is locked of a package, None where there is none or more than one."""
        versions = self.pins.get(canonical(name), set())
        return next(iter(versions)) if len(versions) == 1 else None

    @property
    def index(self) -> str | None:
        """The index that has what PyPI has not, None where there is none."""
        return next((line.split()[1] for line in self.text.splitlines() if line.startswith(_INDEX)), None)

    def with_wheels(self, wheels: Iterable[Wheel], framework: str) -> Lock:
        """Return the lock for a build with a user's own wheels; he trusts them, so their hashes are as good as ours.

        Each line gets the hashes of the wheels of its version. The framework's own index is left out where the
        framework is among them, and every index where all packages are: such a build needs no network.
        """
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
    """Return a package's name as indexes compare it.

    >>> canonical("ML_dtypes")
    'ml-dtypes'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def usable(wheels: Mapping[str, Path], lock: Lock) -> dict[str, Path]:
    """Return those of a folder's wheels, by file name, that are a version which the lock asks for."""
    pins = lock.pins
    found = {}
    for file, path in wheels.items():
        wheel = Wheel(file, "")
        if wheel.version in pins.get(wheel.name, ()):
            found[file] = path
    return found


def _with_hashes(line: str, hashes: Iterable[str]) -> str:
    missing = [f"--hash=sha256:{digest}" for digest in hashes]
    if not missing:
        return line
    # The line goes on where it has hashes of its own already.
    head, goes_on = (line[:-1].rstrip(), " \\") if line.endswith("\\") else (line, "")
    return " \\\n    ".join([head, *missing]) + goes_on
