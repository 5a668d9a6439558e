"""The names of rails: network interfaces of a host, or networks that libfabric reaches from it."""

from __future__ import annotations

import re
from collections.abc import Sequence

# The prefix of libfabric's providers: "fabric:efa", or with a device of the provider "fabric:efa/rdmap16s27-rdm".
FABRIC = "fabric:"
_FABRIC_RAIL = re.compile(r"fabric:[\w;.-]+(/[^\s,/]+)?")
# The kernel's IFNAMSIZ, less the byte that ends the name.
_MAX_INTERFACE_CHARS = 15


def is_rail(name: str) -> bool:
    """Return True if a rail can have this name.

    >>> is_rail("eth0"), is_rail("fabric:efa"), is_rail("10.0.0.0/8"), is_rail("fabric:")
    (True, True, False, False)
    """
    if name.startswith(FABRIC):
        return _FABRIC_RAIL.fullmatch(name) is not None
    # The kernel allows no slash and no space in a name; a comma separates rails in `ReduceVariable.RAILS`.
    return bool(name) and len(name) <= _MAX_INTERFACE_CHARS and not set(name) & set(",/ \t\n")


def are_mixed(rails: Sequence[str]) -> bool:
    """Return True if some rails use libfabric and some do not: a sum would wait for the slower ones."""
    return len({name.startswith(FABRIC) for name in rails}) > 1
