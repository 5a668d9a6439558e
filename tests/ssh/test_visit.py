"""A desk and who visits it, over a shell of this machine: what leads there is not the visit's business."""

import json
import os
import signal
import subprocess
import sys

import pytest

from herringbone.backends.ssh.agent.lock import MachineLock
from herringbone.backends.ssh.agent.messages import Unpacker, WireError, pack
from herringbone.backends.ssh.connection import Visit, Wheel, remote_words
from herringbone_contract.errors import HostError

WHEEL = Wheel()


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("machine") / "work"


@pytest.fixture
def visit(work):
    opened = []

    def begin(words=None, *, folder=None):
        command = ["/bin/sh", "-c", words or remote_words(sys.executable)]
        opened.append(Visit("here", command, work=str(folder or work), wheel=WHEEL))
        return opened[-1]

    yield begin
    for each in opened:
        each.close()


def test_an_environment_is_made_once_and_the_desk_runs_in_it(visit, work):
    hello = visit().ask({"ask": "hello"})
    assert hello["work"] == str(work)
    made = {path.name: path.stat().st_mtime_ns for path in (work / "environments").iterdir()}
    assert visit().ask({"ask": "hello"})["free_bytes"] > 0
    assert {path.name: path.stat().st_mtime_ns for path in (work / "environments").iterdir()} == made


def test_a_machine_is_one_jobs_until_its_holder_is_gone(visit):
    first, second = visit(), visit()
    claim = {"ask": "lock", "job": "digits-1", "client": "me@laptop"}
    assert "owner" not in first.ask(claim)
    assert "owner" not in first.ask(claim)
    assert second.ask(claim)["owner"] == {"job": "digits-1", "client": "me@laptop"}
    first.close()
    assert "owner" not in second.ask(claim)


def test_a_lock_outlives_what_its_file_cannot_say(tmp_path):
    lock = MachineLock(tmp_path / "lock", alive=lambda holder: holder == "1@7")
    assert lock.take({"job": "a"}, holder="1@7") is None
    assert lock.take({"job": "b"}, holder="2@8") == {"job": "a", "holder": "1@7"}
    lock.hand_over("1@7", "3@9")  # to one who is dead already
    assert lock.held_by() is None
    for damage in ("", "{", "[]", '{"job": "a"}'):
        (tmp_path / "lock").write_text(damage)
        assert lock.take({"job": "b"}, holder="1@7") is None


def test_code_and_data_that_are_there_are_not_asked_for(visit, work):
    here = visit()
    asked = {"ask": "missing", "code": "c0de", "data": ["da7a"]}
    answer = here.ask(asked)
    assert answer["code"] is True
    assert list(answer["data"]) == ["da7a"]
    here.ask({"ask": "code", "digest": "c0de"}, b"packed")
    here.ask({"ask": "keep", "digest": "da7a"})
    assert here.ask(asked) | {"answer": 0} == {"answer": 0, "code": False, "data": {}}
    assert (work / "code" / "c0de.tar.gz").read_bytes() == b"packed"


def test_a_refusal_is_an_error_that_names_the_machine(visit):
    with pytest.raises(HostError, match="here: no job 'digits-9'"):
        visit().ask({"ask": "stop", "job": "digits-9", "grace": None})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("exit 3", "here: the connection is over \\(exit code 3\\)"),
        ("echo 'no way' >&2; exit 255", "exit code 255\\): no way"),
        ("echo Welcome; sleep 5", "something else than Herringbone answers"),
        ("python-of-nobody -c pass", "exit code 127"),
    ],
)
def test_what_is_no_desk_is_told(visit, words, message):
    with pytest.raises(HostError, match=message):
        visit(words).ask({"ask": "hello"})


def test_a_work_folder_that_cannot_be_is_told(visit, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match=r"its work folder .*file/work cannot be used"):
        visit(folder=tmp_path / "file" / "work").ask({"ask": "hello"})


def test_a_visit_whose_other_end_dies_says_so(visit):
    here = visit("exec " + remote_words(sys.executable))
    here.ask({"ask": "hello"})
    os.kill(here._process.pid, signal.SIGKILL)
    with pytest.raises(HostError, match="here: the connection is over"):
        here.ask({"ask": "hello"})


def test_messages_arrive_whole_however_they_are_cut():
    sent = pack({"a": 1}) + pack({"log": 2}, b"x\n{}y") + pack({"b": "\n"})
    unpacker = Unpacker()
    found = [each for byte in sent for each in unpacker.feed(bytes([byte]))]
    assert found == [({"a": 1}, b""), ({"log": 2}, b"x\n{}y"), ({"b": "\n"}, b"")]
    with pytest.raises(WireError):
        unpacker.feed(b"Welcome to gpu-1\n")


def test_the_front_needs_nothing_but_the_standard_library():
    code = (
        "import sys, herringbone.backends.ssh.agent.bootstrap\n"
        "print(sorted(name for name in sys.modules if 'herringbone' in name))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(said.replace("'", '"')) == [
        "herringbone",
        "herringbone.backends",
        "herringbone.backends.ssh",
        "herringbone.backends.ssh.agent",
        "herringbone.backends.ssh.agent.bootstrap",
    ]
