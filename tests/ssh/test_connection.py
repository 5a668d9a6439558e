"""Tests of a connection and the agent at its other end, over a shell of this machine instead of ssh."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from herringbone.backends.ssh.agent.lock import MachineLock
from herringbone.backends.ssh.agent.messages import ProtocolError, Unpacker, pack
from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.backends.ssh.transport.connection import GREETING_SECONDS, Connection, Wheel, loader_command
from herringbone.backends.ssh.transport.openssh import explain
from herringbone.slots.folder import SlotsFolder
from herringbone.system.processes import sees
from herringbone.system.remote_line import remote_line
from herringbone_contract.errors import HostError

WHEEL = Wheel()


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A work folder for all tests of this file, so that the environment is made only once."""
    return tmp_path_factory.mktemp("machine") / "work"


@pytest.fixture
def connect(work):
    """Opens connections to an agent on this machine; `command` runs in a shell instead of the loader."""
    opened = []

    def start(command=None, *, folder=None):
        shell = ["/bin/sh", "-c", command or loader_command(sys.executable)]
        seconds = GREETING_SECONDS if command is None or "herringbone" in command else 0.5
        opened.append(Connection("here", shell, work=str(folder or work), wheel=WHEEL, greeting_seconds=seconds))
        return opened[-1]

    yield start
    for connection in opened:
        connection.close()


def test_an_environment_is_made_once_and_the_agent_runs_in_it(connect, work):
    facts = connect().ask({"ask": "facts"})
    assert facts["work"] == str(work)
    times = {path.name: path.stat().st_mtime_ns for path in (work / "environments").iterdir()}
    assert connect().ask({"ask": "facts"})["free_bytes"] > 0
    assert {path.name: path.stat().st_mtime_ns for path in (work / "environments").iterdir()} == times


def test_one_job_has_a_machine_until_the_holder_of_the_lock_is_gone(connect):
    first, second = connect(), connect()
    claim = {"ask": "claim", "job": "digits-1", "client": "me@laptop"}
    assert "busy" not in first.ask(claim)
    # A second request of the same connection is not refused.
    assert "busy" not in first.ask(claim)
    assert second.ask(claim)["busy"] == "runs digits-1 of me@laptop"
    first.close()
    assert "busy" not in second.ask(claim)


def test_a_look_notes_the_place_of_the_job_in_other_lines(connect, tmp_path, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_SLOTS", str(tmp_path / "slots"))
    connection = connect()
    connection.ask({"ask": "enter", "job": "a", "client": "me@laptop", "mark": "a" * 12, "arrival": 1.0})
    for _ in range(2):
        assert connection.ask({"ask": "look", "worst": [1, 5.0]})["number"] == 0
    (ticket,) = SlotsFolder(str(tmp_path / "slots")).read().tickets
    assert (ticket.number, ticket.turn) == (1, 5.0)
    # The request's own number would replace such a member.
    with pytest.raises(AssertionError):
        connection.send({"ask": "look", "number": 1})


def test_a_lock_whose_holder_is_dead_or_whose_file_is_damaged_is_free(tmp_path):
    lock = MachineLock(tmp_path / "lock", alive=lambda holder, _: holder == "1@7", here="h-1 m b n")
    assert lock.acquire({"job": "a"}, holder="1@7") is None
    assert lock.acquire({"job": "b"}, holder="2@8") == {"job": "a", "holder": "1@7", "place": "h-1 m b n"}
    lock.hand_over("1@7", "3@9")  # a dead process
    assert lock.owner() is None
    for damaged in ("", "{", "[]", '{"job": "a"}'):
        (tmp_path / "lock").write_text(damaged)
        assert lock.acquire({"job": "b"}, holder="1@7") is None


@pytest.mark.parametrize(
    ("other", "is_free"),
    [
        # Started again: what ran before the boot has ended, whoever has its pid now.
        ("h-1 a1 boot-1 pid:[4026531836]", True),
        ("h-2 a2 boot-7 pid:[4026531836]", False),
        ("h-1 a1 boot-2 pid:[4026539999]", False),
    ],
)
def test_only_a_holder_that_is_known_to_have_ended_loses_the_lock(tmp_path, other, is_free):
    """A pid of another machine or boot was looked up among this machine's processes."""
    here = "h-1 a1 boot-2 pid:[4026531836]"

    def alive(holder, where):
        seen = sees(where, here)
        # A process of this machine has the holder's pid and start time, and a holder of elsewhere cannot be seen.
        return seen is not False

    holder = "1@7"
    assert MachineLock(tmp_path / "lock", alive=alive, here=other).acquire({"job": "a"}, holder=holder) is None
    lock = MachineLock(tmp_path / "lock", alive=alive, here=here)
    owner = lock.acquire({"job": "b"}, holder=holder)
    assert (owner is None) == is_free
    if owner is not None:
        assert "must not share the work folder" in lock.unseen(owner)
        lock.release(holder)
        assert lock.owner() == owner


def test_code_and_data_that_the_machine_has_are_not_requested(connect, work):
    connection = connect()
    question = {"ask": "missing", "code": "c0de", "data": ["da7a"]}
    answer = connection.ask(question)
    assert answer["code"] is True
    assert list(answer["data"]) == ["da7a"]
    connection.ask({"ask": "code", "digest": "c0de"}, b"packed")
    connection.ask({"ask": "keep", "digest": "da7a"})
    assert connection.ask(question) | {"answer": 0} == {"answer": 0, "code": False, "data": {}}
    assert (work / "code" / "c0de.tar.gz").read_bytes() == b"packed"


def test_a_refusal_is_an_error_that_names_the_machine(connect):
    with pytest.raises(HostError, match="here: no job 'digits-9'"):
        connect().ask({"ask": "stop", "job": "digits-9", "grace": None})


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "exit 3",
            "here: it ended before its Python ran: does a login file .* \\(the connection .* \\(exit code 3\\)\\)",
        ),
        ("exit 0", "does a login file .* or do settings for it in your ssh configuration \\(SessionType, StdinNull\\)"),
        ("echo 'no way' >&2; exit 255", "here: the connection is closed \\(exit code 255\\): no way"),
        ("python-of-nobody -c pass", "here: the connection is closed \\(exit code 127\\)"),
        # As zsh that a login file starts, or `read`; and a program that greets and is not the agent.
        ("echo Welcome; cat", "its Python did not start within 0.5 s \\(it printed 'Welcome'\\): does a login"),
        ("printf '<herringbone>Welcome\\n'; cat", "a program other than Herringbone answers"),
    ],
)
def test_a_program_that_is_not_the_agent_is_reported(connect, command, message):
    with pytest.raises(HostError, match=message):
        connect(command).ask({"ask": "facts"})


@pytest.mark.parametrize(
    "login",
    ["exec </dev/null", "exec <&-", "exec >&-", "kill -9 $$", "exit 0", "exit 255"],
)
def test_login_files_that_end_or_redirect_are_named_without_a_traceback(connect, login):
    """ "ValueError: invalid literal for int() with base 10: b''" was all that a user saw."""
    with pytest.raises(HostError, match=r"does a login file of that machine .*redirect it") as raised:
        connect(f"{login}; {loader_command(sys.executable)}").ask({"ask": "facts"})
    assert "Traceback" not in str(raised.value)
    assert "ValueError" not in str(raised.value)


def test_login_files_may_print_and_take_a_while(connect):
    """Nothing is sent before the greeting, so they cannot read it either."""
    noise = "printf 'loading modules ... '; read -t 0.2 answer; [ -z \"$answer\" ] || exit 1; "
    assert (
        connect(f"bash -c {shlex.quote(noise + loader_command(sys.executable))}").ask({"ask": "owner"})["owner"] is None
    )


def test_a_machine_whose_locale_lacks_letters_uses_utf_8(connect, tmp_path):
    """`environment={"WORD": "\u2603"}` ended the controller there, and files of the code had other names."""
    words = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(tmp_path / "de_DE.ISO-8859-1")]
    if shutil.which(words[0]) is None or subprocess.run(words, capture_output=True).returncode > 1:
        pytest.skip("there are no sources of locales here")
    variables = f"LOCPATH={tmp_path} LC_ALL=de_DE.ISO-8859-1"
    folder = tmp_path / "gr\u00fc\u00dfe \u2603"
    connection = connect(f"exec env {variables} {loader_command(sys.executable)}", folder=folder)
    assert connection.ask({"ask": "facts"})["work"] == str(folder)
    assert b"PYTHONUTF8=1" in Path(f"/proc/{connection._process.pid}/environ").read_bytes().split(b"\0")


BANNER = "Permission denied to all but staff. Connection refused, or timed out. No space left on device.\n"


@pytest.mark.parametrize(
    ("code", "errors", "reason"),
    [
        (127, f"{BANNER}sh: /opt/python3: not found", "it has no /opt/python3"),
        (1, f"{BANNER}/opt/python3: Command not found.", "it has no /opt/python3"),
        (1, f"{BANNER}Traceback", "Permission denied to all"),
        (255, f"{BANNER}kex_exchange_identification: Connection closed by remote host", "Permission denied to all"),
        (255, f"{BANNER}me@h-1: Permission denied (publickey).", "it refuses the login of me"),
        (255, "ssh: connect to host h-1 port 22: Connection refused\r", "no program listens at h-1"),
        (255, "channel 0: open failed: connect failed: Connection refused\nstdio forwarding failed", "no program"),
        (255, "Timeout, server h-1 not responding.", "h-1 does not answer"),
    ],
)
def test_only_lines_of_ssh_itself_are_its_reasons(code, errors, reason):
    """A legal text that machines show before the login was taken for the reason of any error."""
    machine = Machine(name="h-1", user="me", python="/opt/python3")
    assert explain(machine, code, errors).startswith(reason)


@pytest.mark.parametrize("shell", ["sh", "tcsh", "fish", "zsh"])
def test_every_login_shell_passes_words_on_as_they_are(shell):
    """Under tcsh, a word with a newline ran as a command of its own."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words = ["printf", "<%s>", "a b", "x\ntouch y", "it's !! \\\\ two", "\u00e9\u2603", "", "end\n"]
    expected = subprocess.run(words, capture_output=True, check=True).stdout
    done = subprocess.run([shell, "-c", remote_line(words)], capture_output=True)
    assert (done.stdout, done.stderr) == (expected, b"")


def test_a_work_folder_that_cannot_be_made_is_reported(connect, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match=r"its work folder .*file/work cannot be used"):
        connect(folder=tmp_path / "file" / "work").ask({"ask": "facts"})


def test_a_connection_whose_other_end_is_killed_says_so(connect):
    connection = connect("exec " + loader_command(sys.executable))
    connection.ask({"ask": "facts"})
    os.kill(connection._process.pid, signal.SIGKILL)
    with pytest.raises(HostError, match="here: the connection is closed"):
        connection.ask({"ask": "facts"})


def test_messages_are_complete_in_whatever_pieces_they_arrive():
    stream = pack({"a": 1}) + pack({"log": 2}, b"x\n{}y") + pack({"b": "\n"})
    unpacker = Unpacker()
    messages = [message for byte in stream for message in unpacker.feed(bytes([byte]))]
    assert messages == [({"a": 1}, b""), ({"log": 2}, b"x\n{}y"), ({"b": "\n"}, b"")]
    with pytest.raises(ProtocolError):
        unpacker.feed(b"Welcome to gpu-1\n")


def test_the_bootstrap_needs_nothing_but_the_standard_library():
    code = (
        "import sys, herringbone.backends.ssh.agent.bootstrap\n"
        "print(sorted(name for name in sys.modules if 'herringbone' in name))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(output.replace("'", '"')) == [
        "herringbone",
        "herringbone.backends",
        "herringbone.backends.ssh",
        "herringbone.backends.ssh.agent",
        "herringbone.backends.ssh.agent.bootstrap",
    ]
