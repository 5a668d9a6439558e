"""Write files that other processes read, and lock files that other processes lock.

    write_whole("state.json", content, synced=True)
    with locked("state.lock"):
        ...

A reader finds the old file or the new one, never a part, however the writer ends. After a power failure this holds only
for files that are synced, because the kernel may store a file's new name before its content. A sync costs milliseconds,
so only files that nothing can make again, or that are used without a look at their content, are synced:

    serve                   keys, records of jobs and of searches
    tuner                   definition, trials and state of a search, and its place at AWS
    s3.front                objects with their facts, and uploads with their parts: clients think that they are stored
    controller.record       the end of a job in the report that other machines read
    backends.ssh.agent      packed code that a machine keeps under its digest
    parallel                checkpoints, their manifests, the name of the newest one, files of `smp.save`

Not synced: requests and orders with their answers, caches, progress bars, pages, places of exports, and all that a
running job says about itself. The index of jobs is SQLite's, which syncs by itself; see `records.index`.

Some sites keep a way of their own:

    slots.folder                    opens its files, and the lock, relative to a folder that several users share
    s3.front.store, .uploads        a body of any size comes in before its name is known; no link is followed on the way
    code.archive                    the archive's name is the digest of its content
    s3.cache                        the file that is locked becomes the object
    records.checkpoints             renames links in a tree that a script may change
    records.end_file                is written in place: a new file would need room on a full disk
    backends.ssh.agent.lock         has its content in the locked file, so it writes in place
    backends.ssh.agent.bootstrap    runs where no package of ours is yet
    entry's channel.unix_socket     binds a socket, and renames it once it listens
    parallel's reduce.build         its compiler makes the file, before the package that has this module is installed

A folder is whole by the rename of a hidden one; each room that has such folders does that itself.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    AnyPath = str | os.PathLike[str]

_LOCK_POLL_SECONDS = 0.02


def write_whole(
    path: AnyPath, content: bytes, *, mode: int = 0o600, synced: bool = False, exclusive: bool = False
) -> None:
    """Replace a file by one with this content, completely or not at all.

    >>> write_whole("state.json", b"{}")
    >>> oct(os.stat("state.json").st_mode & 0o777)
    '0o600'

    `mode` is the new file's, less the umask, from its first byte on; `synced` as in `replacing`. With `exclusive`, a
    file that exists is left as it is: raises `FileExistsError`. Raises `OSError`, for example for a full disk; the old
    file is then as it was.
    """
    with replacing(path, synced=synced, exclusive=exclusive) as partial:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            rest = memoryview(content)
            while rest:
                # A disk that is almost full takes a part, and reports the error with the next write.
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def replacing(path: AnyPath, *, synced: bool = False, exclusive: bool = False) -> Iterator[str]:
    """Give the body a free name in the folder of `path`; the file that it makes there replaces the one at `path`.

    >>> with replacing("model.pt") as partial: torch.save(model, partial)                        # doctest: +SKIP

    An error of the body removes its file and leaves the old one. With `synced`, content and name are on the disk when
    this returns. The name is hidden and ends in `.partial`; a process that is killed leaves such a file behind.
    """
    folder = os.path.dirname(path)  # noqa: PTH120 - pathlib costs controllers and ranks milliseconds
    # A random name: several processes, on several machines, may write the same file at once.
    partial = os.path.join(folder, f".{os.urandom(8).hex()}.partial")  # noqa: PTH118
    try:
        yield partial
        if synced:
            # Before the rename: after a power failure the name must not lead to a file without its content.
            sync(partial)
        if exclusive:
            # Unlike a rename, a link replaces nothing.
            os.link(partial, path)
        else:
            os.replace(partial, path)  # noqa: PTH105
    finally:
        # After a rename there is nothing to remove.
        with contextlib.suppress(OSError):
            os.unlink(partial)  # noqa: PTH108
    if synced:
        sync(folder or ".")


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all bytes. Raises `OSError`."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def open_regular(path: AnyPath) -> io.FileIO:
    """Open a regular file for reading, without a buffer; links are followed.

    >>> open_regular("/dev/null")
    Traceback (most recent call last):
    ...
    OSError: [Errno 22] it is no regular file: '/dev/null'

    Scripts may leave a FIFO or a link to a device, and opening or reading one could wait for ever. Raises `OSError`.
    """
    file = io.FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))


def sync(path: AnyPath) -> None:
    """Return once the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder, and store its names by themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def locked(path: AnyPath, *, shared: bool = False) -> io.FileIO:
    """Wait for the lock of a file, which is made if there is none; return the open file, whose end frees the lock.

    The kernel frees the lock when the file is closed or the process ends, however it ends. Programs that this process
    starts do not hold the lock. Several may hold a `shared` lock, of a file that exists. A lock excludes other calls of
    the same process, too. Raises `OSError`.
    """
    while True:
        if (file := _lock(path, shared=shared, wait=True)) is not None:
            return file


def try_locked(path: AnyPath, *, seconds: float = 0.0) -> io.FileIO | None:
    """Return what `locked` does, or None if others hold the lock for `seconds`.

    >>> with try_locked("state.lock") as first: try_locked("state.lock") is None
    True
    """
    deadline = time.monotonic() + seconds
    while (file := _lock(path, shared=False, wait=False)) is None and time.monotonic() < deadline:
        time.sleep(_LOCK_POLL_SECONDS)
    return file


def _lock(path: AnyPath, *, shared: bool, wait: bool) -> io.FileIO | None:
    # Imported with the first lock: most ranks take none.
    import fcntl

    # NFS gives the lock of a writer only for a file that is open for writing.
    file = io.FileIO(os.fspath(path), "r" if shared else "a+", opener=_open_private)
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        # Its holder may have removed or renamed the file meanwhile, and others lock a new one.
        if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):  # noqa: PTH116
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
