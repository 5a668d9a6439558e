"""The effect of Ctrl-C: chosen beforehand, or asked on a real terminal."""

import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from herringbone import TrainingJob, attach
from herringbone.records.home import Home
from herringbone.records.index import JobRecord
from herringbone.records.logs import FileLogs
from herringbone.system.interrupt import check_choice, stops, ways_back
from herringbone.system.polling import Pace
from herringbone_contract.errors import OptionError

ASK = "from herringbone.system.interrupt import stops; print('stops:', stops('ask', 'a'), flush=True)"


def ask_on_terminal(typed):
    """Ask in a child on a new terminal, type an answer, and return the question and the child's output."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "import signal; signal.signal(2, signal.default_int_handler); " + ASK]
    child = subprocess.Popen(command, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True)
    os.close(theirs)
    question = b""
    while not question.endswith(b"[y/N] "):
        question += os.read(ours, 1_000)
    if typed is signal.SIGINT:
        child.send_signal(signal.SIGINT)
    else:
        os.write(ours, typed)
    out, _ = child.communicate(timeout=20)
    os.close(ours)
    return question.decode().strip(), out


@pytest.mark.parametrize(
    ("typed", "stopped"), [(b"\n", False), (b"y\n", True), (b"YES\n", True), (b"q\n", False), (signal.SIGINT, False)]
)
def test_enter_leaves_the_job_running(typed, stopped):
    question, out = ask_on_terminal(typed)
    assert question == "stop job a? Enter leaves it running [y/N]"
    assert out == f"stops: {stopped}\n"


def test_on_a_pipe_nothing_is_asked():
    ended = subprocess.run(
        [sys.executable, "-c", ASK], stdin=subprocess.PIPE, capture_output=True, text=True, check=True
    )
    assert (ended.stdout, ended.stderr) == ("stops: False\n", "")
    assert (stops("stop", "a"), stops("detach", "a")) == (True, False)


def test_an_unknown_choice_is_refused():
    check_choice(None)
    with pytest.raises(OptionError, match="on_interrupt: 'kill': expected one of stop, detach, ask"):
        check_choice("kill")


WAITING = """
from herringbone import Estimator
Estimator("train.py", instance_type="local_process").fit(job_name="a", on_interrupt="detach")
"""


@pytest.mark.e2e
def test_a_detached_job_goes_on_and_the_message_says_how_to_come_back(script, start_python, tmp_path):
    script("import sys, time; print('ready', flush=True); time.sleep(60)")
    client = start_python(WAITING, stderr=subprocess.PIPE)
    assert client.stdout.readline() == "[algo-1:0] ready\n"
    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=20)
    assert 'job a goes on; follow it: herringbone logs -f a, or attach("a"); stop it: herringbone stop a\n' in err
    assert err.endswith("KeyboardInterrupt\n")
    job = attach("a")
    assert job.status == "InProgress"
    job.stop(grace=1)
    assert job.wait().status == "Stopped"


class Interrupted:
    """A backend whose third `describe` is interrupted by Ctrl-C; `times` is the number of interrupts."""

    name, pace, on_interrupt, home = "scripted", Pace(0.001, 0.001, 1), "stop", Home(Path("/no-such-home"))

    def __init__(self, times, *, status_after_stop="Stopped"):
        self.times = times
        self.calls = []
        self._row = JobRecord(name="a", backend="scripted", plan="{}", created=0.0)
        self._after_stop = replace(self._row, status=status_after_stop, secondary_status=status_after_stop)

    def describe(self, name):
        if self.calls.count("describe") < 3 * self.times:
            self.calls.append("describe")
            if self.calls.count("describe") % 3 == 0:
                raise KeyboardInterrupt
            return self._row
        return self._after_stop if "stop" in self.calls else self._row

    def logs(self, name):
        return FileLogs(())

    def stop(self, name, grace=None):
        self.calls.append("stop")

    def kill(self, name):
        self.calls.append("kill")


@pytest.mark.parametrize(
    ("times", "on_interrupt", "calls", "messages"),
    [
        (1, None, ["stop"], ["stopping job a; Ctrl-C again kills it"]),
        (
            1,
            "detach",
            [],
            [ways_back("a")],
        ),
        (
            2,
            "stop",
            ["stop", "kill"],
            ["stopping job a; Ctrl-C again kills it", "job a is Stopping: the service ends it when its grace is over"],
        ),
    ],
)
def test_a_waiting_caller_obeys_on_interrupt(capsys, times, on_interrupt, calls, messages):
    backend = Interrupted(times, status_after_stop="Stopped" if times == 1 else "Stopping")
    with pytest.raises(KeyboardInterrupt):
        TrainingJob("a", backend).follow(on_interrupt=on_interrupt)
    assert [call for call in backend.calls if call != "describe"] == calls
    assert capsys.readouterr().err.splitlines() == messages
