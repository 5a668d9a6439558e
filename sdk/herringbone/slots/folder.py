"""The files of a machine's line, which jobs of several users share.

    lock                     flock of it guards every change that depends on other tickets: to enter, and to be granted
    UID.JOB.RANDOM           a ticket as JSON, written by its owner alone: a temporary file, then a rename
    UID.JOB.RANDOM.alive     a FIFO that the job's processes hold open for reading; a byte in it wakes a waiter
    UID.turn                 its time is that of the user's last grant
    machine.json             {"cpu_shares": 4}, if root or the folder's owner wrote it

A ticket counts while its FIFO has a reader. The kernel knows that for processes of other users, of other containers and
of ones that were killed, and a process hands its descriptor to the next one without a moment in which nobody holds it.
Files of others are read as untrusted: what is no regular file of the right owner, size and form does not exist.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import stat
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from herringbone.slots.ticket import MAX_BYTES, Ticket, decode, encode, uid_of
from herringbone_contract.errors import LaunchError, OptionError

VARIABLE = "HERRINGBONE_SLOTS"
SHARES_VARIABLE = "HERRINGBONE_CPU_SHARES"
# The first is used if an administrator has made it.
_OF_ADMINISTRATOR, _DEFAULT = "/var/lib/herringbone-slots", "/tmp/herringbone-slots"  # noqa: S108 - shared on purpose
LOCK_SECONDS = 10.0
_POLL_SECONDS = 0.003
_LOCK, _MACHINE, _ALIVE, _TURN, _PARTIAL = "lock", "machine.json", ".alive", ".turn", ".partial"
# Windows imports this module to refuse jobs politely, and has none of these.
_SAFE = sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))
_MOST_SHARES = 100_000
# Errors that say nothing about a file: this process, or the machine, has too much open now.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_ABOVE = 10


class LockBusyError(LaunchError):
    """Another process holds the lock of this machine's line for too long.

    To fix: Try again; `fuser` of the file in the message names the process, which may be paused.
    """


@dataclass(frozen=True, slots=True)
class View:
    """The tickets of living jobs, and the time of each user's last grant, by uid."""

    tickets: tuple[Ticket, ...]
    turns: Mapping[int, float]


class Turn(NamedTuple):
    """The time of a user's last grant before a grant and after it, in nanoseconds since 1970; 0 for none."""

    before: int
    taken: int


def slots_path(environ: Mapping[str, str]) -> str | None:
    """Return the folder of this machine's line; None where HERRINGBONE_SLOTS is off.

    >>> slots_path({"HERRINGBONE_SLOTS": "/srv/slots"}), slots_path({"HERRINGBONE_SLOTS": "off"})
    ('/srv/slots', None)
    """
    path = environ.get(VARIABLE)
    if path == "off":
        return None
    if path:
        if not os.path.isabs(path):  # noqa: PTH117 - waiters start without pathlib
            raise OptionError(f"{VARIABLE}={path}: expected an absolute path, or off")
        return path
    return _OF_ADMINISTRATOR if os.path.isdir(_OF_ADMINISTRATOR) else _DEFAULT  # noqa: PTH112


def cpu_shares(environ: Mapping[str, str]) -> int:
    """Return the number of CPU shares of this machine; 0 where nobody has set it.

    >>> cpu_shares({"HERRINGBONE_CPU_SHARES": "4"})
    4
    """
    text = environ.get(SHARES_VARIABLE)
    if text is not None:
        if not text.isdigit() or int(text) > _MOST_SHARES:
            raise OptionError(f"{SHARES_VARIABLE}={text}: expected a number from 0 to {_MOST_SHARES}")
        return int(text)
    path = slots_path(environ)
    try:
        if path is None or not stat.S_ISDIR((info := os.lstat(path)).st_mode):
            return 0
        content = _read_file(f"{path}/{_MACHINE}", {0, info.st_uid})
        shares: Any = 0 if content is None else json.loads(content)["cpu_shares"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0
    return shares if type(shares) is int and 0 <= shares <= _MOST_SHARES else 0


@functools.cache
def user_name(uid: int) -> str:
    """Return the name of a user, the number where the system has none. The environment has no say."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class SlotsFolder:
    """The folder at `path`, which is made if it is missing.

    >>> folder = SlotsFolder("/tmp/herringbone-slots")             # doctest: +SKIP
    >>> with folder.locked(): descriptor = folder.add(ticket)      # doctest: +SKIP

    Raises `LaunchError` for a folder that cannot be used safely, and when the lock is not free in `lock_seconds`.
    """

    def __init__(self, path: str, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self.path = path
        self._lock_seconds = lock_seconds
        self._uid = os.getuid()
        # A process may have been killed between the two steps below. A private folder of the user's own stays private.
        is_ours = path == _DEFAULT
        try:
            os.mkdir(path, 0o700)  # noqa: PTH102
            is_ours = True
        except FileExistsError:
            pass
        except OSError as error:
            raise LaunchError(f"{path}: {error.strerror}; set {VARIABLE} to a folder that can be made") from None
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
        except OSError as error:
            raise LaunchError(f"{path}: {error.strerror}; the folder of slots must be a folder and no link") from None
        # Also without `close`: a program may submit thousands of jobs, each with a folder of its own.
        self._closing = weakref.finalize(self, os.close, self._fd)
        info = os.fstat(self._fd)
        if is_ours and info.st_uid == self._uid and info.st_mode & 0o777 == 0o700:
            # As /tmp: everybody adds files, and nobody removes another user's. Not by `mkdir`, which the umask narrows.
            os.fchmod(self._fd, 0o1777)
            info = os.fstat(self._fd)
        shared = bool(info.st_mode & stat.S_ISVTX) or not info.st_mode & 0o022
        if not shared and info.st_uid not in (self._uid, 0):
            self.close()
            raise LaunchError(f"{path}: others may remove your files there; `chmod 1777` it, or set {VARIABLE}")

    def close(self) -> None:
        self._closing()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder; the kernel frees it when this process is killed."""
        descriptor = self._lock(time.monotonic() + self._lock_seconds)
        try:
            yield
        finally:
            os.close(descriptor)

    def read(self) -> View:
        """Return the living tickets, without a lock: each file is replaced as a whole."""
        tickets, turns, now = [], {}, time.time()
        for name in os.listdir(self._fd):  # noqa: PTH208
            if name.endswith(_TURN):
                if (turn := self._turn(name)) is not None:
                    # A time in the future would put the user behind all others for ever.
                    turns[turn[0]] = min(turn[1], now)
            elif (uid := uid_of(name)) is not None and (ticket := self._ticket(name, uid)) is not None:
                tickets.append(ticket)
        return View(tuple(tickets), turns)

    def add(self, ticket: Ticket) -> int:
        """Enter the line; return the descriptor that keeps the ticket alive. Requires the lock."""
        import fcntl

        # Without the lock, a clean-up could take a FIFO that is not open yet for one of a dead job.
        self._remove_dead()
        fifo = ticket.name + _ALIVE
        os.mkfifo(fifo, 0o600, dir_fd=self._fd)
        # Also for writing: a FIFO that only readers have open reports the end of the file after each poke.
        opened = os.open(fifo, os.O_RDWR | _SAFE, dir_fd=self._fd)
        # Above the descriptors that a supervisor gets under fixed numbers: it inherits this one, too.
        descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
        os.close(opened)
        # Others may poke, and may not read: a reader would look like a living job.
        os.fchmod(descriptor, 0o622)
        try:
            self.replace(ticket)
        except BaseException:
            os.close(descriptor)
            self.remove(ticket.name)
            raise
        return descriptor

    def replace(self, ticket: Ticket) -> None:
        """Write a ticket of this user, all of it or nothing. Requires the lock."""
        partial = ticket.name + _PARTIAL
        self._unlink(partial)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o600, dir_fd=self._fd)
        try:
            content = encode(ticket)
            if os.write(descriptor, content) != len(content):
                # Half a ticket does not count, and others would take its devices.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), partial)
            # Whatever the umask is: a ticket that others cannot read would not keep them from these devices.
            os.fchmod(descriptor, 0o644)
        finally:
            os.close(descriptor)
        os.rename(partial, ticket.name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def take_turn(self) -> Turn:
        """Note that a job of this user was granted now; the result is for `return_turn`. Requires the lock."""
        name = f"{self._uid}{_TURN}"
        before = self._turn_time(name)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o644, dir_fd=self._fd))
        # Another user may have made a file of this name, which does not count. It must not keep the job from starting.
        with contextlib.suppress(PermissionError):
            os.utime(name, dir_fd=self._fd, follow_symlinks=False)
        return Turn(before, self._turn_time(name))

    def return_turn(self, turn: Turn) -> None:
        """Undo `take_turn` for a job that did not start, unless the user was granted more since. Requires the lock."""
        name = f"{self._uid}{_TURN}"
        if self._turn_time(name) == turn.taken:
            with contextlib.suppress(OSError):
                os.utime(name, ns=(turn.before, turn.before), dir_fd=self._fd, follow_symlinks=False)

    def _turn_time(self, name: str) -> int:
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mtime_ns
        except OSError:
            return 0

    def remove(self, name: str) -> None:
        """Leave the line, or free what was granted. Needs no lock: for all others, the ticket is there or not."""
        for file in (name, name + _PARTIAL, name + _ALIVE):
            self._unlink(file)

    def touch(self, name: str) -> None:
        """Keep a clean-up of old files in /tmp away from a ticket."""
        for file in (name, name + _ALIVE):
            with contextlib.suppress(OSError):
                os.utime(file, dir_fd=self._fd, follow_symlinks=False)

    def poke(self, names: Sequence[str]) -> None:
        """Wake the waiters of these tickets; those that are gone are no error."""
        for name in names:
            with contextlib.suppress(OSError):
                fifo = self._open_fifo(name, uid_of(name))
                try:
                    os.write(fifo, b"\0")
                finally:
                    os.close(fifo)

    def _lock(self, deadline: float) -> int:
        import fcntl

        while True:
            descriptor = self._open_lock()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its owner may have removed the file meanwhile, and others lock a new one.
                if os.path.samestat(os.fstat(descriptor), os.stat(_LOCK, dir_fd=self._fd, follow_symlinks=False)):
                    return descriptor
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    os.close(descriptor)
                    raise
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise LockBusyError(
                    f"{self.path}/{_LOCK}: another process holds the lock of this machine's slots for more than "
                    f"{self._lock_seconds:g} s; `fuser {self.path}/{_LOCK}` names it"
                )
            time.sleep(_POLL_SECONDS)

    def _open_lock(self) -> int:
        # Two attempts in this order: with O_CREAT, Linux refuses files of others in a folder such as /tmp.
        while True:
            try:
                return os.open(_LOCK, os.O_RDONLY | _SAFE, dir_fd=self._fd)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    descriptor = os.open(_LOCK, os.O_RDONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o644, dir_fd=self._fd)
                    os.fchmod(descriptor, 0o644)
                    return descriptor
            except OSError as error:
                raise LaunchError(f"{self.path}/{_LOCK}: {error.strerror}; remove it, or set {VARIABLE}") from None

    def _ticket(self, name: str, uid: int) -> Ticket | None:
        try:
            os.close(self._open_fifo(name, uid))
            content = _read_file(name, {uid}, self._fd)
        except OSError as error:
            _raise_shortage(error)
            # No FIFO, or no process that holds it.
            return None
        ticket = None if content is None else decode(name, content)
        # The file's owner may have written any name into it.
        return None if ticket is None else msgspec.structs.replace(ticket, user=user_name(uid))

    def _open_fifo(self, name: str, uid: int | None) -> int:
        """Open a ticket's FIFO for writing. Raises `OSError` where no process has it open for reading."""
        descriptor = os.open(name + _ALIVE, os.O_WRONLY | _SAFE, dir_fd=self._fd)
        info = os.fstat(descriptor)
        if not stat.S_ISFIFO(info.st_mode) or info.st_uid != uid:
            os.close(descriptor)
            raise OSError(errno.EINVAL, "no FIFO of the ticket's owner")
        return descriptor

    def _turn(self, name: str) -> tuple[int, float] | None:
        uid = name.removesuffix(_TURN)
        try:
            info = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return None
        if not uid.isdigit() or len(uid) > 10 or not stat.S_ISREG(info.st_mode) or info.st_uid != int(uid):
            return None
        return int(uid), info.st_mtime

    def _remove_dead(self) -> None:
        """Remove the files of this user's jobs that are dead. Requires the lock."""
        names = os.listdir(self._fd)  # noqa: PTH208
        stems = {name.removesuffix(_ALIVE).removesuffix(_PARTIAL) for name in names}
        for stem in stems:
            if uid_of(stem) != self._uid:
                continue
            try:
                os.close(self._open_fifo(stem, self._uid))
            except OSError as error:
                _raise_shortage(error)
                self.remove(stem)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._fd)


def _read_file(name: str, owners: set[int], folder: int | None = None) -> bytes | None:
    """Return the content of a regular file of one of the owners; None for all others."""
    try:
        descriptor = os.open(name, os.O_RDONLY | _SAFE, dir_fd=folder)
    except OSError as error:
        _raise_shortage(error)
        return None
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in owners or info.st_size > MAX_BYTES:
            return None
        return os.read(descriptor, MAX_BYTES)
    finally:
        os.close(descriptor)


def _raise_shortage(error: OSError) -> None:
    """Raise an error that does not tell whether a job lives: its devices must not be taken for free."""
    if error.errno in _SHORTAGES:
        raise error
