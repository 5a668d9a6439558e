"""Orders to a rank: through a signal, or through a thread once torch.distributed is there; never at another's cost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import wait_until

from herringbone_entry.channel.attach import ORDER_SIGNAL
from herringbone_entry.event_loop import Loop
from herringbone_entry.supervisor.rank_orders import RankOrder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this signal")
# The script's process. `deadlock` waits in C, where Python runs no signal handlers, as in a collective.
RANK = """
import ctypes, os, sys, time
from herringbone_entry.ranks import rank
sys.path.insert(0, {folder!r})
def deadlock():
    mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    print("ready", flush=True)
    lock(mutex)
def order_module():
    from herringbone_entry.ranks import orders
    orders._MODULES["echo"] = "echo"
{script}
"""
ECHO = """
import os, threading
def obey(order):
    return {"pid": os.getpid(), "main": threading.main_thread().name == "MainThread", "order": order["order"]}
"""


@pytest.fixture
def start(tmp_path: Path):
    """Start a rank that runs a script; return its process once it has printed a line."""
    (tmp_path / "echo.py").write_text(ECHO)
    processes = []

    def run(script: str) -> subprocess.Popen[str]:
        text = RANK.format(folder=str(tmp_path), script=textwrap.dedent(script).replace("FOLDER", repr(str(tmp_path))))
        process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def order(folder: Path, pid: int, name: str = "echo", seconds: float = 10.0, **options: Any) -> dict[str, Any]:
    loop, answers = Loop(), []

    def take(answer: dict[str, Any]) -> None:
        answers.append(answer)
        loop.stop(0)

    # As before Python 3.14, unless a test says otherwise.
    RankOrder(loop, str(folder), pid, name, "00ff00ff00ff00ff", take, **{"remote_exec": None, **options}).send(seconds)
    if not answers:
        loop.run()
    (answer,) = answers
    assert [path.name for path in folder.iterdir() if path.name.startswith(("order-", "answer-"))] == []
    return answer


def test_a_signal_brings_an_order_to_a_script_that_runs_python(start, tmp_path: Path) -> None:
    rank = start("rank.take_orders(FOLDER); order_module(); print('ready', flush=True); time.sleep(60)")
    for _ in range(2):
        assert order(tmp_path, rank.pid) == {"pid": rank.pid, "main": True, "order": "echo"}
    assert "KeyError" in order(tmp_path, rank.pid, "dance")["error"]
    # A signal without an order does nothing.
    os.kill(rank.pid, ORDER_SIGNAL)
    assert order(tmp_path, rank.pid)["pid"] == rank.pid


def test_a_process_that_takes_no_orders_is_not_killed_by_the_signal(start, tmp_path: Path) -> None:
    rank = start("print('ready', flush=True); time.sleep(60)")
    assert "takes no orders" in order(tmp_path, rank.pid)["error"]
    assert "no folder for orders" in order_without_folder(rank.pid)
    assert rank.poll() is None


def order_without_folder(pid: int) -> str:
    answers: list[dict[str, Any]] = []
    RankOrder(Loop(), "", pid, "echo", "0", answers.append).send(1.0)
    return str(answers[0]["error"])


def test_a_rank_that_waits_in_a_library_answers_only_in_a_thread(start, tmp_path: Path) -> None:
    without = start("rank.take_orders(FOLDER); order_module(); deadlock()")
    # The first order may come before the second lock.
    errors = [order(tmp_path, without.pid, seconds=0.5).get("error", "") for _ in range(2)]
    assert "did not answer within 0.5 s" in errors[-1]
    # In place of the real one, which takes a second to load.
    (tmp_path / "torch").mkdir()
    for name in ("__init__.py", "distributed.py"):
        (tmp_path / "torch" / name).touch()
    with_thread = start(
        """
        order_module()
        from herringbone_entry.ranks import import_hooks
        import_hooks.install("", FOLDER, "")
        assert len(os.listdir("/proc/self/task")) == 1
        import torch.distributed
        assert len(os.listdir("/proc/self/task")) == 2
        deadlock()
        """
    )
    assert order(tmp_path, with_thread.pid)["pid"] == with_thread.pid


def test_a_forked_child_has_no_listener_and_takes_no_orders_of_its_parent(start, tmp_path: Path) -> None:
    rank = start(
        """
        rank.take_orders(FOLDER)
        order_module()
        from herringbone_entry.ranks import orders
        orders.listen(FOLDER)
        import threading, warnings
        assert threading.active_count() == 1, "the script sees a thread that is not its own"
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            threads = len(os.listdir("/proc/self/task"))
            open(FOLDER + "/threads", "w").write(str(threads))
            time.sleep(60)
            os._exit(0)
        print("ready", flush=True)
        time.sleep(60)
        """
    )
    child = children(rank.pid)[0]
    try:
        for _ in range(3):
            assert order(tmp_path, rank.pid)["pid"] == rank.pid
        wait_until(lambda: (tmp_path / "threads").exists(), 10)
        assert (tmp_path / "threads").read_text() == "1"
    finally:
        os.kill(child, signal.SIGKILL)


def test_python_3_14_brings_an_order_without_a_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the rank: it has no handler, and `remote_exec` runs the program as Python 3.14 would."""
    from herringbone_entry.ranks import orders

    monkeypatch.setitem(orders._MODULES, "echo", "echo")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "echo.py").write_text(ECHO)
    calls = []

    def remote_exec(pid: int, path: str) -> None:
        calls.append(pid)
        assert os.stat(path).st_mode & 0o777 == 0o600
        exec(Path(path).read_text(), {})  # noqa: S102 - as Python itself does

    def refuse(pid: int, path: str) -> None:
        raise PermissionError("ptrace")

    assert order(tmp_path, os.getpid(), remote_exec=remote_exec)["pid"] == os.getpid()
    assert calls == [os.getpid()]
    assert not list(tmp_path.glob("order-*"))
    assert "takes no orders" in order(tmp_path, os.getpid(), remote_exec=refuse)["error"]


def test_a_forked_child_leaves_the_debugger_of_python_3_12() -> None:
    """There pydevd watches by `sys.monitoring`, whose callbacks a child inherits."""
    from herringbone_entry.ranks import debugger

    removed = []

    def register_callback(tool: int, event: int, function: object) -> None:
        if event == 0:
            raise ValueError("The callback can only be set for one event at a time")
        removed.append((tool, event, function))

    events = SimpleNamespace(LINE=32, NO_EVENTS=0, RAISE=512)
    monitoring = SimpleNamespace(
        DEBUGGER_ID=0, events=events, get_tool=lambda tool: "pydevd", register_callback=register_callback
    )
    debugger.leave(removed.append, monitoring)
    assert removed == [None, (0, 32, None), (0, 512, None)]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_second_order_waits_for_nobody(start, tmp_path: Path) -> None:
    rank = start("rank.take_orders(FOLDER); deadlock()")
    answers: list[dict[str, Any]] = []
    loop = Loop()
    RankOrder(loop, str(tmp_path), rank.pid, "echo", "1", answers.append).send(5.0)
    RankOrder(loop, str(tmp_path), rank.pid, "echo", "2", answers.append).send(5.0)
    assert "has not taken an earlier order" in answers[0]["error"]
