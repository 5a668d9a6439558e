"""What leads to machines: a way to visit one, and a way to bring folders there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

from herringbone.backends.ssh.connection import Visit

Machine = TypeVar("Machine", contravariant=True)


class Road(Protocol[Machine]):
    """Raises `HostError` for a machine that cannot be reached, with what to do about it."""

    def visit(self, machine: Machine) -> Visit:
        """Begin a visit and return at once; whether it came about shows at the first question."""

    def send(self, machine: Machine, here: Path, there: str) -> None:
        """Make the folder `there` what the folder `here` is, links followed; of a lone file, a folder with it."""

    def fetch(self, machine: Machine, there: str, here: Path) -> None:
        """Make the folder `here` what the folder `there` is; links that lead out of it stay behind."""
