"""The process that measures: it ends with the user's Ctrl-C, and its children with it; nothing that it does stays."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.sdk.conftest import running_in, with_namespaces
from tests.waiting import wait_until

from herringbone.prediction import guard
from herringbone.prediction.guard import REFUSED
from herringbone.prediction.measuring import run_program
from herringbone.system.namespaces import mount
from herringbone_contract.errors import MeasurementError, UnsupportedError

PROGRAM = """
import os, sys
from pathlib import Path
from herringbone.prediction.measuring import run_program
child = "import subprocess, time; subprocess.Popen(['sleep', '60']); print('measure: up', flush=True); time.sleep(60)"
run_program(
    [sys.executable, "-c", child], os.environ, Path.cwd(), timeout=60, show=lambda line: print(line, flush=True),
    alone=ALONE,
)
"""


@pytest.fixture(params=[False, pytest.param(True, marks=with_namespaces)], ids=["with others", "alone"])
def start_python(request, start_python):
    return lambda code: start_python(code.replace("ALONE", str(request.param)))


def test_ctrl_c_ends_the_script_and_its_children(home, start_python):
    process = start_python(PROGRAM)
    assert process.stdout.readline() == "up\n"
    # The caller, the program and its child: the guard's variables are the machine's.
    assert len(running_in(home.path)) == 3
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    assert running_in(home.path) == {}


def test_a_second_ctrl_c_leaves_nothing_behind_either(home, start_python):
    # The script ignores the first one's SIGTERM, so that the second arrives while its end is awaited.
    stubborn = PROGRAM.replace('child = "', 'child = "import signal; signal.signal(15, signal.SIG_IGN); ')
    process = start_python(stubborn)
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    # A child that was killed is gone a moment later, on a busy machine.
    wait_until(lambda: not running_in(home.path), 10)


def test_a_kill_ends_the_script_and_its_children_as_well(home, start_python):
    process = start_python(PROGRAM)
    assert process.stdout.readline() == "up\n"
    process.kill()
    process.wait(20)
    wait_until(lambda: not running_in(home.path), 20)
    assert running_in(home.path) == {}


@pytest.fixture
def alone(tmp_path):
    """Runs a text of Python in namespaces; returns what it gave back as its result, from JSON."""

    def run(code, **variables):
        folder = tmp_path / "work"
        folder.mkdir()
        give = "\ndef give(value):\n    import json, sys\n    open(sys.argv[-1], 'w').write(json.dumps(value))\n"
        words = [sys.executable, "-c", give + textwrap.dedent(code)]
        return json.loads(run_program(words, variables, folder, timeout=60, show=print))

    return run


@with_namespaces
def test_files_are_as_before_whatever_a_program_did_to_them(alone, tmp_path, monkeypatch):
    names = ("append", "empty", "remove", "rename", "mode", "linked")
    for name in names:
        (tmp_path / name).write_text("precious")
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)
    changed = alone(
        f"""
        import os, shutil
        from pathlib import Path
        os.chdir({str(tmp_path)!r})
        Path("append").open("a").write("!")
        Path("empty").write_text("")
        Path("remove").unlink()
        Path("rename").rename("renamed")
        Path("mode").chmod(0)
        os.link("linked", "link")
        Path("work/below").mkdir()
        Path("/dev/shm/herringbone-left").write_text("")
        Path("/tmp/herringbone-left").write_text("")
        Path(os.path.expanduser("~/herringbone-left")).write_text("")
        give([sorted(os.listdir()), Path("append").read_text()])
        """
    )
    assert changed == [["append", "empty", "fifo", "link", "linked", "mode", "renamed", "work"], "precious!"]
    assert {name: (tmp_path / name).read_text() for name in names} == dict.fromkeys(names, "precious")
    assert sorted(os.listdir()) == sorted([*names, "fifo", "work"])
    for folder in ("/dev/shm", "/tmp", Path.home()):
        assert not Path(folder, "herringbone-left").exists()


@with_namespaces
def test_nobody_outside_can_be_reached(alone, tmp_path, monkeypatch):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as by_path, socket.socket(socket.AF_UNIX) as by_name, socket.socket() as by_port:
        by_path.bind(str(path))
        by_name.bind(f"\0herringbone-{os.getpid()}")
        by_port.bind(("127.0.0.1", 0))
        addresses = [str(path), f"\0herringbone-{os.getpid()}", by_port.getsockname()]
        for listener in (by_path, by_name, by_port):
            listener.listen()
        reached = alone(
            f"""
            import os, socket
            def reach(address):
                kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
                try:
                    socket.socket(kind).connect(address)
                except OSError as error:
                    return type(error).__name__
            own = socket.create_server(("127.0.0.1", 0))
            processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
            give([*map(reach, {addresses!r}), reach(own.getsockname()), processes])
            """
        )
    # Of processes, it sees the first one of its namespace and itself.
    assert reached == [*["ConnectionRefusedError"] * 3, None, [1, 2]]


@with_namespaces
def test_daemons_end_with_the_program(alone):
    # A name that no other process has.
    name = f"herringbone-daemon-{os.getpid()}"
    alone(
        f"""
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", {name!r}], start_new_session=True)
        give(None)
        """
    )
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if name in _read(path)]


@with_namespaces
def test_a_program_has_the_jobs_variables_and_no_others(alone, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    # A library of the job's, loaded by a process outside, would be code that runs there.
    mark = tmp_path / "loaded"
    (tmp_path / "sitecustomize.py").write_text(f"open({str(mark)!r}, 'w')")
    code = """
        import os
        try:
            first = open("/proc/1/environ").read()
        except PermissionError:
            first = ""
        give([os.environ.get(name) for name in ("AWS_SECRET_ACCESS_KEY", "MINE", "HOME")] + ["planted" in first])
        """
    assert alone(code, MINE="7", PYTHONPATH=str(tmp_path)) == [None, "7", os.environ["HOME"], False]
    assert not mark.exists()


@with_namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="others have no privileges to begin with")
def test_root_cannot_leave_by_its_privileges(alone):
    failed = alone(
        """
        import os, subprocess
        def tried(call):
            try:
                call()
            except OSError as error:
                return type(error).__name__
        give([
            tried(lambda: os.mknod("/tmp/disk", 0o60600, os.makedev(254, 0))),
            tried(lambda: open("/proc/sys/kernel/core_pattern", "w")),
            tried(lambda: os.chmod("/dev/null", 0o600)),
            tried(lambda: os.chroot("/proc/1/root")),
            *[subprocess.run(words, capture_output=True).returncode != 0 for words in (
                ["mount", "-o", "remount,rw", "/proc"], ["umount", "/proc"], ["unshare", "--user", "true"],
                ["nsenter", "--target", "1", "--mount", "true"],
            )],
        ])
        """
    )
    assert failed == ["PermissionError", "OSError", "OSError", "PermissionError", *[True] * 4]


@with_namespaces
@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounts a file system")
def test_a_file_system_whose_server_is_gone_is_left_out(alone, tmp_path):
    dead = tmp_path / "dead"
    dead.mkdir()
    server = os.open("/dev/fuse", os.O_RDWR)
    mount("fuse", str(dead), 0, b"fuse", f"fd={server},rootmode=40000,user_id=0,group_id=0")
    os.close(server)
    try:
        with pytest.raises(OSError, match="endpoint is not connected"):
            dead.stat()
        assert alone("give(7)") == 7
    finally:
        subprocess.run(["umount", "-l", dead], check=True)


@with_namespaces
def test_no_exit_code_of_a_script_passes_for_a_refusal(alone):
    with pytest.raises(MeasurementError, match="the script could not be measured, exit code 1"):
        alone(f"import os; os._exit({REFUSED})")


def test_a_system_without_namespaces_is_refused(tmp_path):
    refusing = (sys.executable, "-c", f"print('unshare: Operation not permitted'); raise SystemExit({REFUSED})")
    with pytest.raises(UnsupportedError, match=r"this system refuses them; .*: unshare: Operation not permitted"):
        run_program(["true"], {}, tmp_path, timeout=60, show=print, guard=refusing)


def _read(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_entries_that_go_while_their_folder_is_read_are_left_out(tmp_path, monkeypatch):
    folder, view = tmp_path / "machine", object.__new__(guard._View)
    for name in ("gone", "stays"):
        (folder / name).mkdir(parents=True)
    # Mounts below a folder make the view show it entry by entry.
    view._root, view._mounts = str(tmp_path / "root"), [f"{folder}/mounted", f"{folder}/stays/mounted"]
    (tmp_path / f"root{folder}").mkdir(parents=True)
    entries = list(os.scandir(folder))
    (folder / "gone").rmdir()
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: entries if path == str(folder) else scandir(path))
    view._show(str(folder))
    assert (tmp_path / f"root{folder}" / "stays").is_dir()
