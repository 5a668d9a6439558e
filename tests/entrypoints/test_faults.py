"""The program that causes a fault on a host: it finds the job's own processes, and says why it did nothing."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from herringbone_entry import faults
from herringbone_entry.faults import Done, Process

RANK = ["python", "-c", "import herringbone_entry.ranks.rank"]
OBSERVER = ["python", "-c", "import herringbone_entry.observer.main"]
MPIRUN = ["mpirun", "-n", "2", *RANK]


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_ranks_are_found_below_mpirun_and_their_workers_are_none():
    family = [
        Process(1, 0, ["python", "-m", "herringbone_entry"]), Process(2, 1, MPIRUN), Process(3, 1, OBSERVER),
        Process(4, 2, RANK), Process(5, 2, RANK), Process(6, 4, RANK),
    ]  # fmt: skip
    assert [one.pid for one in faults.ranks_in(family)] == [4, 5]
    # A script's own program, under another Python.
    assert [one.pid for one in faults.ranks_in([family[0], family[2], Process(7, 1, ["bash"])])] == [7]


def test_a_checkpoint_is_complete_once_it_has_not_changed_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "_SETTLED_SECONDS", 0.1)
    looks = []

    def look(folder):
        looks.append(time.monotonic())
        # A save that has not ended, then a file that grows for three looks.
        return (
            {f"{folder}/.tag.unfinished/a": (1, 1, 1)}
            if len(looks) < 3
            else {f"{folder}/a": (1, min(len(looks), 6), 1)}
        )

    monkeypatch.setattr(faults, "family_here", lambda: [Process(1, 0, [])])
    assert faults.await_checkpoint(str(tmp_path), look)
    assert len(looks) > 6
    assert looks[-1] - looks[5] > 0.1


def test_a_file_that_replaces_another_one_is_a_complete_checkpoint(tmp_path):
    looks = iter([{f"{tmp_path}/a": (1, 1, 1)}, {f"{tmp_path}/a": (1, 2, 1)}, {f"{tmp_path}/a": (2, 3, 1)}])
    assert faults.await_checkpoint(str(tmp_path), lambda _: next(looks))
    assert next(looks, None) is None


def test_a_host_that_is_gone_has_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "family_here", list)
    assert faults.cause("wait", 0, str(tmp_path)) is Done.NO_SAVE
    for kind in ("rank", "notice", "lost", "frozen", "torn", "full", "links", "controller"):
        assert faults.cause(kind, 0, str(tmp_path)) is Done.NO_PROCESS, kind


def test_a_save_is_torn_by_the_end_of_the_rank_that_saves(tmp_path, monkeypatch, child):
    monkeypatch.setattr(faults, "family_here", lambda: [Process(1, 0, []), Process(child.pid, 1, RANK)])

    def save():
        while child.poll() is None:
            (tmp_path / "new").write_text("x")
            time.sleep(0.01)

    thread = threading.Thread(target=save)
    thread.start()
    assert faults.tear(str(tmp_path), 10) is Done.YES
    thread.join()
    assert child.returncode == -signal.SIGKILL
    assert faults.tear(str(tmp_path), 0.05) is Done.NO_SAVE


def test_a_full_disk_fails_the_save_and_is_over_after_it(tmp_path, monkeypatch):
    (tmp_path / "old").write_bytes(b"x" * 1000)
    # Whenever the limit comes, the largest file is the old one, and the next part of a save meets it.
    code = (
        "import sys, time\nprint('begun', flush=True)\ndef save(mode, size):\n"
        " with open(sys.argv[1], mode) as file: file.write(b'x' * size)\n"
        "for _ in range(1000):\n try:\n  save('wb', 400); time.sleep(.01); save('ab', 400)\n"
        " except OSError as error:\n"
        "  print(error.errno, flush=True)\n  time.sleep(1)\n  save('wb', 3000); break\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "new")], stdout=subprocess.PIPE, text=True
    ) as rank:
        monkeypatch.setattr(faults, "family_here", lambda: [Process(1, 0, []), Process(rank.pid, 1, RANK)])
        assert rank.stdout is not None
        assert rank.stdout.readline() == "begun\n"
        assert faults.fill(str(tmp_path), 10) is Done.YES
        assert rank.communicate()[0].strip() == "27"  # EFBIG
    assert (rank.returncode, (tmp_path / "new").stat().st_size) == (0, 3000)


def test_connections_of_the_process_end_and_its_pairs_of_sockets_do_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = (
            "import socket, sys\npair = socket.socketpair()\n"
            "connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
            "print(connection.recv(1), pair[0].send(b'x'), pair[1].recv(1), flush=True)\n"
        )
        words = [sys.executable, "-c", code, str(server.getsockname()[1])]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            connection = server.accept()[0]
            done = faults.cut([Process(process.pid, os.getpid(), [])])
            if done is Done.REFUSED:
                process.kill()
                pytest.skip("this system lets nobody trace a child")
            assert done is Done.YES
            assert process.communicate()[0].strip() == "b'' 1 b'x'"
            assert connection.recv(1) == b""
            connection.close()
    assert faults.cut([Process(process.pid, 1, [])]) is Done.NO_PROCESS


def test_the_supervisor_is_found_by_its_whole_command_and_the_tree_of_its_host(monkeypatch):
    words = ["python", "-m", "herringbone_entry"]
    running = [
        Process(1, 0, ["init"]), Process(2, 1, ["srun", "--nodes=1", *words]), Process(3, 1, words),
        Process(4, 1, words), Process(5, 4, RANK),
    ]  # fmt: skip
    trees = {"/proc/2/environ": "/b", "/proc/3/environ": "/a", "/proc/4/environ": "/b"}
    monkeypatch.setattr(faults, "processes", lambda: running)
    monkeypatch.setattr(faults, "read_text", lambda path: f"HOME=/\0SAGEMAKER_BASE_DIR={trees[path]}\0")
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", "/b")
    assert [one.pid for one in faults.family_here()] == [4, 5]
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", "/c")
    assert faults.family_here() == []
