"""Addresses in volumes: `pvc://CLAIM/FOLDER` is a folder of the volume that a PersistentVolumeClaim has. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from herringbone_contract.errors import OptionError

SCHEME = "pvc://"
HOST_MARK = "@HOST@"
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class Place(NamedTuple):
    """A folder of a claim's volume; "" is the volume's own top."""

    claim: str
    folder: str

    def below(self, *names: str) -> Place:
        return Place(self.claim, "/".join(filter(None, (self.folder, *names))))


def literal(text: str) -> str:
    """Return a text as a word of a pod's program, in which Kubernetes replaces `$(NAME)` by variables.

    >>> literal("pvc/$(USER)")
    'pvc/$$(USER)'
    """
    return text.replace("$(", "$$(")


def is_claim(address: str | None) -> bool:
    return address is not None and address.startswith(SCHEME)


def parse_place(option: str, address: str) -> Place:
    """Return the folder of a claim. Raises `OptionError`, which begins with the option's name.

    >>> parse_place("output_path", "pvc://results/team-a/")
    Place(claim='results', folder='team-a')
    """
    claim, _, folder = address.removeprefix(SCHEME).partition("/")
    parts = [part for part in folder.split("/") if part]
    # Pods write their own names in the place of HOST_MARK.
    if not address.startswith(SCHEME) or not _CLAIM.fullmatch(claim) or {".", ".."} & set(parts) or HOST_MARK in folder:
        raise OptionError(f"{option}: {address!r} is no folder of a claim; write pvc://CLAIM/FOLDER")
    return Place(claim, "/".join(parts))
