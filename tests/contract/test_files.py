"""Files that other processes read are whole or absent, and locks exclude each other, however their writers end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.power_cut import PowerCut

from herringbone_contract.files import locked, replacing, try_locked, write_whole

OLD, NEW = b"old" * 4000, b"new" * 5000


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


def test_a_file_is_replaced_and_its_mode_is_the_new_one(tmp_path):
    path = tmp_path / "state.json"
    path.write_bytes(OLD)
    path.chmod(0o644)
    with path.open("rb") as reader:
        write_whole(path, NEW)
        # A reader that has the old file open goes on in the old one.
        assert reader.read() == OLD
    assert path.read_bytes() == NEW
    assert path.stat().st_mode & 0o777 == 0o600
    write_whole(path, OLD, mode=0o666)
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()
    assert os.listdir(tmp_path) == ["state.json"]


def current_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def test_a_name_in_the_present_folder_and_the_longest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_whole("a", NEW, synced=True)
    write_whole("b" * 255, NEW)
    assert Path("a").read_bytes() == Path("b" * 255).read_bytes() == NEW


@pytest.mark.parametrize("options", ["", "synced=True", "exclusive=True"])
def test_a_full_disk_leaves_the_old_file(tmp_path, options):
    path = tmp_path / "state.json"
    path.write_bytes(OLD)
    program = f"""
import resource, sys
from herringbone_contract.files import write_whole
# A write beyond the limit fails in the middle, as on a full disk.
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
write_whole(sys.argv[1], bytes(100_000), {options})
"""
    done = run(program, path)
    assert "OSError: [Errno 27]" in done.stderr
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "state.json"
    path.write_bytes(OLD)
    program = """
import os, signal, sys
from herringbone_contract.files import replacing
with replacing(sys.argv[1]) as partial:
    open(partial, "wb").write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(program, path).returncode == -signal.SIGKILL
    assert path.read_bytes() == OLD
    # Hidden, and of a name that nobody takes for a file of the job.
    (left,) = {entry.name for entry in tmp_path.iterdir()} - {"state.json"}
    assert left.startswith(".")
    assert left.endswith(".partial")


def test_an_error_of_the_body_leaves_nothing(tmp_path):
    def interrupted() -> None:
        with replacing(tmp_path / "a") as partial:
            Path(partial).write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_exclusive_replaces_nothing(tmp_path):
    path = tmp_path / "order.json"
    write_whole(path, OLD, exclusive=True)
    with pytest.raises(FileExistsError):
        write_whole(path, NEW, exclusive=True)
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["order.json"]


def test_several_writers_leave_one_whole_file(tmp_path):
    path, contents = tmp_path / "state.json", [bytes([number]) * 300_000 for number in range(4)]
    threads = [
        threading.Thread(target=lambda content=content: [write_whole(path, content) for _ in range(20)])
        for content in contents
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            assert path.read_bytes() in contents
    assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["state.json"]


def left_by_a_power_cut(folder: Path, write: Callable[[], None], into: Path) -> tuple[set[bytes], set[bytes]]:
    """Return what a reader may find at any moment, and once the writer is done; b"-" for no file."""
    with PowerCut(folder) as cut:
        write()
    during, after = set(), set()
    for left, over in cut.folders(into, tries=40):
        path = left / "state.json"
        (after if over else during).add(path.read_bytes() if path.exists() else b"-")
    return during, after


@pytest.mark.parametrize("first", [OLD, b"-"])
def test_a_synced_file_is_old_or_new_after_a_power_cut(tmp_path, first):
    (folder := tmp_path / "folder").mkdir()
    path = folder / "state.json"
    if first != b"-":
        path.write_bytes(first)
    during, after = left_by_a_power_cut(folder, lambda: write_whole(path, NEW, synced=True), tmp_path / "left")
    assert during == {first, NEW}
    assert after == {NEW}


def test_a_power_cut_damages_what_is_not_synced(tmp_path):
    (folder := tmp_path / "folder").mkdir()
    (path := folder / "state.json").write_bytes(OLD)
    during, after = left_by_a_power_cut(folder, lambda: write_whole(path, NEW), tmp_path / "left")
    # The test above means something only if the disk of these tests loses data.
    assert after - {OLD, NEW}
    assert OLD in during


def test_a_lock_excludes_threads_and_processes(tmp_path):
    path = tmp_path / "lock"
    program = "import sys; from herringbone_contract.files import try_locked; print(try_locked(sys.argv[1]))"
    with locked(path):
        assert path.stat().st_mode & 0o777 == 0o600
        assert try_locked(path) is None
        assert try_locked(path, seconds=0.05) is None
        assert run(program, path).stdout == "None\n"
    assert "FileIO" in run(program, path).stdout
    # The other process has ended without freeing the lock.
    with locked(path):
        pass


def test_a_waiter_gets_the_lock_when_its_holder_is_killed(tmp_path):
    path = tmp_path / "lock"
    program = """
import sys, time
from herringbone_contract.files import locked
lock = locked(sys.argv[1])
print("locked", flush=True)
time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    assert try_locked(path) is None
    got = threading.Event()
    waiter = threading.Thread(target=lambda: [locked(path).close(), got.set()])
    waiter.start()
    assert not got.is_set()
    holder.kill()
    holder.wait()
    holder.stdout.close()
    waiter.join(timeout=60)
    assert got.is_set()


def test_a_started_program_does_not_hold_the_lock(tmp_path):
    path = tmp_path / "lock"
    with locked(path):
        program = subprocess.Popen(["sleep", "60"])
    try:
        with try_locked(path) as lock:
            assert lock is not None
    finally:
        program.kill()
        program.wait()


def open_files() -> Iterator[os.stat_result]:
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            yield descriptor.stat()


def test_a_removed_file_is_not_locked(tmp_path):
    path, got = tmp_path / "lock", []
    holder = locked(path)
    waiter = threading.Thread(target=lambda: got.append(locked(path)))
    waiter.start()
    while sum(os.path.samestat(os.fstat(holder.fileno()), state) for state in open_files()) < 2:
        pass
    # The waiter has opened the file that is removed now.
    path.unlink()
    holder.close()
    waiter.join(timeout=60)
    # The waiter has the lock of the file that others find under the name.
    assert os.path.samestat(os.fstat(got[0].fileno()), path.stat())
    assert try_locked(path) is None
    got[0].close()


def test_shared_locks_exclude_the_other_kind_alone(tmp_path):
    path = tmp_path / "ready"
    with pytest.raises(FileNotFoundError):
        locked(path, shared=True)
    path.write_bytes(NEW)
    with locked(path, shared=True), locked(path, shared=True):
        assert try_locked(path) is None
    with try_locked(path) as lock:
        assert lock is not None
    assert path.read_bytes() == NEW
