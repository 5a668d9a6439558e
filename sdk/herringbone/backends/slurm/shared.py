"""Checks that the cluster's nodes see the job's folder, which must be on a shared file system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

from herringbone.backends.slurm.commands import SlurmCommands
from herringbone_contract.errors import InputError, SlurmError

# File systems of one machine; all others (nfs, lustre, gpfs, beegfs, ceph, fuse.*) are taken for shared.
_OF_ONE_MACHINE = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay"))
_WAIT_SECONDS = 10
_WAY_OUT = "set HERRINGBONE_HOME to a folder on a file system that the cluster's machines share"


def check_shared(folder: Path, slurm: SlurmCommands, *, partition: Sequence[str], this_host: str, mounts: str) -> None:
    """Raise `InputError` when the cluster cannot see a folder of this machine.

    `partition` are srun's words that select nodes, `this_host` is this machine's name and `mounts` its /proc/mounts.
    If neither the type of the file system nor the nodes' names decide it, a node is asked. When no node is free, the
    job itself will show it.
    """
    if slurm.where != "this machine" and not _sees(slurm, folder):
        raise InputError(f"{slurm.where} does not see the folder {folder} of this machine; {_WAY_OUT}")
    file_system = file_system_of(folder, mounts)
    if file_system not in _OF_ONE_MACHINE or _nodes(slurm) == {this_host}:
        return
    try:
        seen = slurm.ask(
            "srun",
            *("--nodes=1", "--ntasks=1", f"--immediate={_WAIT_SECONDS}", "--time=1", "--quiet", *partition),
            *("sh", "-c", 'test -d "$0" && echo yes || echo no', str(folder)),
        )
    except SlurmError:
        return
    # A site's prologs may print something first.
    if seen.split()[-1:] == ["no"]:
        raise InputError(
            f"the nodes do not see the folder {folder}, which is on {file_system} of this machine; {_WAY_OUT}"
        )


def file_system_of(path: PurePath, mounts: str) -> str:
    """Return the type of the file system of a path; `mounts` is the text of /proc/mounts.

    >>> file_system_of(PurePath("/home/me/jobs"), "/dev/sda / ext4 rw 0 0\\nserver:/x /home nfs4 rw 0 0\\n")
    'nfs4'
    """
    longest = (0, "")
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        # `>=`: a later mount at the same point hides the earlier one.
        if path.is_relative_to(point.replace("\\040", " ")) and len(point) >= longest[0]:
            longest = (len(point), kind)
    return longest[1]


def _sees(slurm: SlurmCommands, folder: Path) -> bool:
    try:
        slurm.ask("test", "-d", str(folder))
    except SlurmError:
        return False
    return True


def _nodes(slurm: SlurmCommands) -> set[str]:
    return set(slurm.ask("sinfo", "--noheader", "--format=%n").split())
