"""Linux's namespaces by direct calls: a process's own view of files, processes and networks."""

from __future__ import annotations

import ctypes
import os

NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000
NEW_IPC, NEW_PROCESSES, NEW_NETWORK = 0x08000000, 0x20000000, 0x40000000
# Values of Linux's header mount.h.
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT = 1, 2, 4, 8, 32
BIND, RECURSIVE, _SLAVE = 4096, 16384, 1 << 19
# Of mount_setattr(2), which has this number on all architectures.
_SET_ATTRIBUTES, _HERE, _WITH_CHILDREN = 442, -100, 0x8000


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(source: str | None, target: str, flags: int, kind: bytes | None = None, options: str | None = None) -> None:
    """Call mount(2). Raises `OSError`."""
    data = None if options is None else os.fsencode(options)
    _call("mount", None if source is None else os.fsencode(source), os.fsencode(target), kind, flags, data)


def make_read_only(target: str) -> None:
    """Make a mount and those below it read-only, whatever their other flags are. Raises `OSError` before Linux 5.12."""
    attributes = (ctypes.c_uint64 * 4)(READ_ONLY)
    path = ctypes.c_char_p(os.fsencode(target))
    _call("syscall", _SET_ATTRIBUTES, _HERE, path, _WITH_CHILDREN, attributes, ctypes.c_size_t(32))


def unshare(kinds: int) -> None:
    """Give this process new namespaces, a mount namespace among them, whose mounts do not leave it.

    >>> unshare(NEW_MOUNTS | NEW_NETWORK)                               # doctest: +SKIP

    Raises `OSError` where the system does not allow it.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        # Root may, and so may a process that has made a user namespace earlier, for another host of the job.
        _call("unshare", kinds)
    except PermissionError:
        # Without privileges, mounting needs a user namespace. The user keeps the same id in it.
        _call("unshare", kinds | NEW_USERS)
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as stream:  # noqa: PTH123 - pathlib costs the controller milliseconds
                stream.write(text)
    # Mounts of the machine, such as a home that is mounted on demand, still arrive here; ours do not leave.
    mount(None, "/", RECURSIVE | _SLAVE)


def keep_privileges(kept: tuple[int, ...]) -> None:
    """Let no program that this process starts from now on have other privileges (capabilities(7)) than these."""
    drop_from_bounding_set, no_new_privileges = 24, 38
    with open("/proc/sys/kernel/cap_last_cap") as file:  # noqa: PTH123
        last = int(file.read())
    for number in {*range(last + 1)} - {*kept}:
        _call("prctl", drop_from_bounding_set, number, 0, 0, 0)
    _call("prctl", no_new_privileges, 1, 0, 0, 0)
