"""Decide what a container may not do to the machine. Pure."""

from __future__ import annotations

from typing import Any

# Root in a container keeps what installing packages, changing owners and starting ranks over sshd need. Devices, raw
# packets and capabilities of files are for none of these.
_DROPPED_OF_ROOT = ("MKNOD", "NET_RAW", "SETFCAP", "SETPCAP")


def restrictions(user: str) -> dict[str, Any]:
    """Return the members of a container's `HostConfig` that restrict it; `user` is the container's `User`.

    >>> restrictions("1000:1000")
    {'SecurityOpt': ['no-new-privileges'], 'CapDrop': ['ALL']}

    Another user than root has no capabilities, and with `no-new-privileges` no program gives it any: sudo does not
    work. Ranks of one user may still read each other's memory, as MPI and NCCL do: that takes no capability.
    """
    uid = user.partition(":")[0]
    is_root = not uid.isdecimal() or not uid.strip("0")
    return {"SecurityOpt": ["no-new-privileges"], "CapDrop": list(_DROPPED_OF_ROOT) if is_root else ["ALL"]}
