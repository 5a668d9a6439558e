"""Layers over channels: a container may change its input, and the data stays as it is.

SageMaker copies a channel in File mode to the instance's own disk, so scripts unpack archives there, rename files and
make programs executable. A copy of a large folder costs time and disk. So the engine mounts an overlay:

    lowerdir   the channel's folder, which nobody writes to
    upperdir   <job>/layers/HOST/CHANNEL/upper    what this host's container has changed
               -> /opt/ml/input/data/CHANNEL      both in one

Where the kernel cannot do this, the channel is mounted read-only. `mountinfo` is read once a job; all else is pure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from herringbone.backends.docker.tree import Mount

_MOUNTINFO = Path("/proc/self/mountinfo")
# The layers need whiteouts and extended attributes, which network file systems and FUSE do not have. A folder that is
# an overlay itself cannot have one more layer of changes.
_LOCAL_DISKS = frozenset({"ext4", "xfs", "btrfs", "tmpfs"})
# The kernel reads the folders from one line, in which these letters separate them.
_SEPARATORS = frozenset(',:\\"')
_OCTAL = re.compile(r"\\([0-7]{3})")
# The engine hands the line to the kernel, which takes one page at most.
_LINE_BYTES = 4000
_UPPER, _WORK = "upper", "work"


class Disk(NamedTuple):
    """A mounted file system: the folder on which it is mounted, and its type."""

    folder: str
    kind: str


def can_overlay(info: Mapping[str, Any], kernel: str) -> bool:
    """Report whether an engine can make layers over folders of this machine, whose kernel is `kernel`.

    >>> can_overlay({"OSType": "linux", "KernelVersion": "6.1.0", "SecurityOptions": ["name=seccomp"]}, "6.1.0")
    True

    `info` is the engine's answer to `/info`. An engine in a virtual machine has another kernel, an engine without root
    may mount no overlay with these options, and Podman's volumes have other options.
    """
    return (
        info.get("OSType") == "linux"
        and info.get("KernelVersion") == kernel
        and "BuildahVersion" not in info
        and maps_no_users(info)
    )


def maps_no_users(info: Mapping[str, Any]) -> bool:
    """Report whether users and groups of an engine's machine have the same numbers in its containers."""
    options = {word for option in info.get("SecurityOptions") or () for word in option.split(",")}
    return options.isdisjoint({"name=rootless", "name=userns"})


def with_layers(mounts: Sequence[Mount], disks: Sequence[Disk]) -> list[Mount]:
    """Return the mounts; those that cannot have their layer are read-only, without one.

    >>> mount = Mount("/data", "/opt/ml/input/data/training", read_only=True, layer="/home/me/layers/algo-1/training")
    >>> with_layers([mount], [Disk("/", "ext4"), Disk("/data", "nfs4")])[0].layer is None
    True
    """
    return [mount if _fits(mount, disks) else replace(mount, layer=None) for mount in mounts]


def make_layers(mounts: Sequence[Mount]) -> None:
    """Create the folders of the layers; the engine makes no folder."""
    for mount in mounts:
        if mount.layer is not None:
            for part in (_UPPER, _WORK):
                Path(mount.layer, part).mkdir(parents=True)
            # The container sees the mode of the upper folder, which is that of the data at SageMaker's, too: its own.
            Path(mount.layer, _UPPER).chmod(0o755)


def volume_of(mount: Mount) -> dict[str, Any]:
    """Return the engine's request for a layer: a volume without a name, which goes with its container."""
    assert mount.layer is not None
    upper, work = (PurePosixPath(mount.layer, part) for part in (_UPPER, _WORK))
    options = {"type": "overlay", "device": "overlay", "o": f"lowerdir={mount.source},upperdir={upper},workdir={work}"}
    return {
        "Type": "volume",
        "Target": mount.target,
        # Otherwise the engine would copy what the image has at this place into the layer.
        "VolumeOptions": {"NoCopy": True, "DriverConfig": {"Name": "local", "Options": options}},
    }


def disks_of_this_machine() -> list[Disk]:
    """Return the mounted file systems; none where the system does not tell."""
    try:
        return parse_disks(_MOUNTINFO.read_text())
    except OSError:
        return []


def parse_disks(text: str) -> list[Disk]:
    """Return the file systems of `/proc/self/mountinfo`. Pure.

    >>> parse_disks("36 35 98:0 / /my\\\\040data rw - ext4 /dev/sda rw")
    [Disk(folder='/my data', kind='ext4')]
    """
    disks = []
    for line in text.splitlines():
        mount, _, system = line.partition(" - ")
        folder = mount.split()[4]
        disks.append(Disk(_OCTAL.sub(lambda match: chr(int(match[1], 8)), folder), system.split()[0]))
    return disks


def _fits(mount: Mount, disks: Sequence[Disk]) -> bool:
    if mount.layer is None:
        return True
    source, layer = os.path.realpath(mount.source), os.path.realpath(mount.layer)
    line = volume_of(mount)["VolumeOptions"]["DriverConfig"]["Options"]["o"]
    return (
        _SEPARATORS.isdisjoint(mount.source + mount.layer)
        and len(os.fsencode(line)) <= _LINE_BYTES
        and {_kind(source, disks), _kind(layer, disks)} <= _LOCAL_DISKS
        # An overlay shows one file system: a disk that is mounted below the folder would be an empty folder.
        and not any(disk.folder.startswith(f"{source}/") for disk in disks)
        # The kernel refuses folders of which one is inside the other.
        and not f"{layer}/".startswith(f"{source}/")
    )


def _kind(path: str, disks: Sequence[Disk]) -> str:
    """Return the type of the file system of a path; "" where it is unknown."""
    covering = [disk for disk in disks if disk.folder == "/" or f"{path}/".startswith(f"{disk.folder}/")]
    # Of two at one place, the later one hides the earlier one.
    deepest = max((len(disk.folder) for disk in covering), default=0)
    return next((disk.kind for disk in reversed(covering) if len(disk.folder) == deepest), "")
