"""Run a program alone until it ends, or until the caller is gone: `python guard.py ENVIRONMENT VIEW WORD ...`.

    caller      holds the other end of this standard input, which the kernel closes also when the caller is killed
    [1] guard   kills its process group then
    [2] first   the first process of the namespaces: when it ends, the kernel ends every process in them
    [3] program the words; in a file system that looks like the machine's, and forgets what is written to it

ENVIRONMENT is a descriptor from which [1] reads the program's variables: a loader's variable among them must find no
process outside. VIEW is an empty folder, where [2] builds the file system; with "" the program is not alone. The exit
code is the program's, 128 and the signal's number for one that a signal ended, REFUSED without namespaces.

Each folder of the machine is the lower layer of an overlay, whose upper layer is in memory. So writes, removals and
renames work, and end with the namespace; sockets and FIFOs of the lower layer have nobody at their other end.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import select
import signal
import socket
import stat
import struct
import sys
from pathlib import Path

# Python runs isolated here, so that a folder of the user's cannot have a say.
if not __package__:
    sys.path.append(str(Path(__file__).parents[2]))

from herringbone.system import namespaces
from herringbone.system.namespaces import BIND, NO_DEVICES, NO_EXEC, NO_SUID, READ_ONLY, RECURSIVE, mount

# The exit code where the system allows no namespaces, or no view in them.
REFUSED = 97
_SECURE = NO_SUID | NO_DEVICES
# Made anew, from the machine's kernel.
_KERNELS = ("/proc", "/sys", "/dev")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}
# To read and write files of any owner, as root is used to: CHOWN, DAC_OVERRIDE and FOWNER. Others have none of them.
_KEPT_PRIVILEGES = (0, 1, 3)
_SET_INTERFACE_FLAGS, _UP = 0x8914, 0x41


def main() -> int:
    """Run the program that the arguments name; return its exit code."""
    descriptor, view, *words = sys.argv[1:]
    with open(int(descriptor), encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - a descriptor
        environment = json.load(file)
    # The program gets the group's SIGTERM itself, and ends as it likes. It would inherit SIG_IGN, but no handler.
    signal.signal(signal.SIGTERM, lambda *_: None)
    kinds = namespaces.NEW_MOUNTS | namespaces.NEW_IPC | namespaces.NEW_PROCESSES | namespaces.NEW_NETWORK
    try:
        if view:
            namespaces.unshare(kinds)
    except OSError as error:
        return _refuse(error)
    first = os.fork()
    if first == 0:
        code = REFUSED
        try:
            code = _first(view, words, environment)
        except Exception as error:  # noqa: BLE001 - the child must not return into its copy of the caller
            _refuse(error)
        finally:
            os._exit(code)
    ready, _, _ = select.select([0, os.pidfd_open(first)], [], [])
    if 0 in ready:
        os.killpg(0, signal.SIGKILL)
    return _code(os.waitpid(first, 0)[1])


def _first(view: str, words: list[str], environment: dict[str, str]) -> int:
    """Run the program from the first process of the namespaces; return its exit code."""
    if view:
        _bring_up_loopback()
        _View(view).enter()
        namespaces.keep_privileges(_KEPT_PRIVILEGES)
    program = os.posix_spawnp(words[0], words, environment, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ))
    while True:
        # Orphans of the namespace end here, too.
        pid, status = os.wait()
        if pid == program:
            # A script's own exit code must not pass for a refusal.
            return 1 if _code(status) == REFUSED else _code(status)


# Of a file or a mount that is not there any more.
_GONE = (errno.ENOENT, errno.ENOTCONN, errno.ESTALE)


class _View:
    """The machine's file system, in a folder that only this mount namespace sees: its root, and the upper layers."""

    def __init__(self, folder: str) -> None:
        self._root, self._layers = f"{folder}/root", f"{folder}/layers"
        self._count = 0
        mounts = Path("/proc/self/mountinfo").read_bytes().splitlines()
        # The fifth word is the folder, with blanks and others as octal numbers.
        octal = re.compile(rb"\\([0-7]{3})")
        self._mounts = [
            os.fsdecode(octal.sub(lambda match: bytes([int(match[1], 8)]), line.split()[4])) for line in mounts
        ]
        mount("tmpfs", folder, _SECURE, b"tmpfs", "mode=755")

    def enter(self) -> None:
        """Build the view and make it this process's root folder."""
        here = Path.cwd()
        for folder in (self._root, self._layers):
            Path(folder).mkdir()
        self._show("/")
        # Read-only: root, whose files the kernel's settings are, could change the machine by them.
        mount("proc", f"{self._root}/proc", _SECURE | NO_EXEC | READ_ONLY, b"proc")
        mount("/sys", f"{self._root}/sys", BIND | RECURSIVE)
        namespaces.make_read_only(f"{self._root}/sys")
        for name in _DEVICES:
            self._show_file(f"/dev/{name}")
        for name, number in _DEVICE_LINKS.items():
            Path(f"{self._root}/dev/{name}").symlink_to(f"/proc/self/fd{number}")
        Path(f"{self._root}/dev/shm").mkdir()  # noqa: S108 - a mount of this namespace
        self._show("/dev/shm")  # noqa: S108
        os.chroot(self._root)
        os.chdir(here)

    def _show(self, folder: str) -> None:
        """Show a folder: as one overlay, or, where other mounts are below it, entry by entry.

        Without privileges, the kernel makes no overlay of a folder that has mounts.
        """
        start = folder.rstrip("/") + "/"
        if not any(place.startswith(start) and place != folder for place in self._mounts):
            self._show_layer(folder)
            return
        for entry in os.scandir(folder):
            try:
                self._show_entry(entry)
            except OSError as error:
                # Other programs may remove it in the meantime, and a file system's server may be gone.
                if error.errno not in _GONE:
                    raise

    def _show_entry(self, entry: os.DirEntry[str]) -> None:
        path = self._root + entry.path
        if entry.is_symlink():
            Path(path).symlink_to(Path(entry.path).readlink())
        elif entry.is_dir():
            Path(path).mkdir()
            # Folders of others cannot be read.
            with contextlib.suppress(PermissionError):
                Path(path).chmod(stat.S_IMODE(entry.stat().st_mode))
                if entry.path not in _KERNELS:
                    self._show(entry.path)
        elif entry.is_file():
            self._show_file(entry.path)

    def _show_layer(self, folder: str) -> None:
        self._count += 1
        upper, work = f"{self._layers}/{self._count}", f"{self._layers}/{self._count}-work"
        target, facts = self._root + folder, Path(folder).stat()
        Path(upper).mkdir()
        Path(work).mkdir()
        # The overlay's own folder is the upper layer's.
        Path(upper).chmod(stat.S_IMODE(facts.st_mode))
        with contextlib.suppress(OSError):
            os.chown(upper, facts.st_uid, facts.st_gid)
        # By descriptor: a path may have characters that separate options.
        lower = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        options = f"lowerdir=/proc/self/fd/{lower},upperdir={upper},workdir={work},userxattr"
        try:
            mount("overlay", target, _SECURE, b"overlay", options)
        except OSError:
            # A file system that can be no layer, such as FAT.
            mount(folder, target, BIND)
            namespaces.make_read_only(target)
        finally:
            os.close(lower)

    def _show_file(self, path: str) -> None:
        Path(self._root + path).touch()
        mount(path, self._root + path, BIND)
        # A device can be written to all the same, and keeps its owner and mode.
        namespaces.make_read_only(self._root + path)


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        fcntl.ioctl(link, _SET_INTERFACE_FLAGS, struct.pack("16sh22x", b"lo", _UP))


def _refuse(error: Exception) -> int:
    print(f"{error}", file=sys.stderr, flush=True)
    return REFUSED


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
