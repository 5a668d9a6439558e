"""`herringbone ls`, on a terminal, in a pipe and as JSON."""

import contextlib
import io
import json
import os
import re
import time

import pytest

from herringbone.cli.__main__ import main
from herringbone.records.index import JobIndex, JobRecord
from herringbone.show.tables import show_table
from herringbone.system.disk import size_of
from herringbone.system.sizes import shown_bytes
from herringbone.system.texts import shortened
from herringbone_contract.failure import Failure

PLAN = json.dumps({"hosts": [], "channels": [], "hyperparameters": {}})


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def on_terminal(monkeypatch):
    """Runs a command on a terminal; returns the exit code and the lines."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)

    def run(*words, columns=80):
        monkeypatch.setenv("COLUMNS", str(columns))
        with contextlib.redirect_stdout(Terminal()) as stream:
            code = main(words)
        return code, stream.getvalue().splitlines()

    return run


@pytest.fixture
def ls(capsys):
    def run(*words):
        code = main(["ls", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def add(home):
    """Adds a finished job of some minutes ago."""
    home.make()
    now = time.time()

    def row(name, minutes, status="Completed", secondary=None, **columns):
        created = now - 60 * minutes - 1
        JobIndex(home.index).add(
            JobRecord(
                name=name, backend="local_process", plan=PLAN, created=created, started=created, ended=created + 12.34,
                status=status, secondary_status=secondary or status, hosts=1, **columns,
            )
        )  # fmt: skip

    return row


@pytest.fixture
def four(add):
    add("train-2026-11-22-12-29-26-475", 300)
    failure = Failure("algo-1", 0, 1, "ValueError", "bad [red]batch\x1b[2J\nsecond")
    add("broken", 90, "Failed", failure=failure.to_json())
    add("slow", 45, "Stopped", "MaxRuntimeExceeded")
    add("halted", 2, "Stopped")


def plain(line):
    return re.sub("\x1b\\[[0-9;]*m", "", line).rstrip()


def test_a_terminal_shows_the_newest_last_with_colours_and_reasons(on_terminal, four):
    code, lines = on_terminal("ls", columns=120)
    assert code == 0
    assert [re.split(r"\s{2,}", plain(line)) for line in lines] == [
        ["NAME", "STATUS", "CREATED", "TIME", "HOSTS", "WHY"],
        ["train-2026-11-22-12-29-26-475", "Completed", "5 h ago", "12.3 s", "1"],
        ["broken", "Failed", "1 h ago", "12.3 s", "1", "rank 0 on algo-1: ValueError: bad [red]batch\\x1b[2J"],
        ["slow", "Timed out", "45 min ago", "12.3 s", "1", "max_run was over"],
        ["halted", "Stopped", "2 min ago", "12.3 s", "1", "asked to stop"],
    ]
    assert "\x1b[31mFailed" in lines[2]
    assert "\x1b[32mCompleted" in lines[1]


@pytest.mark.parametrize("columns", [80, 60])
def test_no_line_is_wider_than_the_terminal(on_terminal, four, columns):
    _, lines = on_terminal("ls", columns=columns)
    assert len(lines) == 5
    assert max(len(plain(line)) for line in lines) <= columns
    assert plain(lines[-1]).startswith("halted ")
    assert columns == 80 or plain(lines[1]).startswith("train-20…-26-475  Completed")


def test_colours_follow_the_environment(on_terminal, four, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert not [line for line in on_terminal("ls")[1] if "\x1b[3" in line]
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not [line for line in on_terminal("ls")[1] if "\x1b" in line]


def test_a_terminal_shows_twenty_unless_asked(on_terminal, add, ls):
    for number in range(23):
        add(f"job-{number}", number)
    _, lines = on_terminal("ls")
    assert (lines[0], len(lines)) == ("3 older: herringbone ls --all", 22)
    assert plain(lines[-1]).startswith("job-0 ")
    assert len(on_terminal("ls", "--all")[1]) == 24
    assert [plain(line).split()[0] for line in on_terminal("ls", "-n", "2")[1][2:]] == ["job-1", "job-0"]
    assert len(ls()[1].splitlines()) == 24
    assert [line.split()[0] for line in ls("-n", "2")[1].splitlines()] == ["NAME", "job-0", "job-1"]


def test_a_pipe_gets_every_cell_whole_and_no_colour(ls, four):
    code, out, err = ls()
    head, halted, slow, *_, train = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["NAME", "STATUS", "CREATED", "SECONDS", "HOSTS"]
    assert halted.split()[:2] == ["halted", "Stopped"]
    assert slow.split()[:2] == ["slow", "Stopped/MaxRuntimeExceeded"]
    assert train.startswith("train-2026-11-22-12-29-26-475  Completed")
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--status", "FAILED"], ["broken"]),
        (["--status", "stopped"], ["halted", "slow"]),
        (["--status", "maxruntimeexceeded", "--status", "Failed"], ["slow", "broken"]),
        (["--status", "InProgress"], []),
        (["--status", "stopped", "-n", "1"], ["halted"]),
    ],
)
def test_jobs_of_a_status(ls, four, words, names):
    assert [job["TrainingJobName"] for job in json.loads(ls(*words, "--json")[1])] == names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--status", "faild"], "'faild' is no status; did you mean Failed?"),
        (["--status", "zzz"], "'zzz' is no status; expected one of InProgress, Completed, Failed"),
        (["-n", "0"], "0 is not in the range x>=1"),
        (["--all", "-n", "3"], "--all and -n N exclude each other."),
    ],
)
def test_mistakes(ls, four, words, message):
    code, out, err = ls(*words)
    assert (code, out) == (2, "")
    assert message in err


def test_the_size_of_the_folders(ls, four, home, on_terminal):
    folder = home.job("slow").path / "hosts" / "ml"
    folder.mkdir(parents=True)
    (folder / "model").write_bytes(b"x" * 1500)
    size = size_of(home.job("slow").path)
    assert size >= 1500
    sizes = {job["TrainingJobName"]: job["SizeInBytes"] for job in json.loads(ls("--size", "--json")[1])}
    assert sizes == {"halted": 0, "slow": size, "broken": 0, "train-2026-11-22-12-29-26-475": 0}
    assert ls("--size")[1].splitlines()[2].split()[-1] == str(size)
    line = plain(on_terminal("ls", "--size", columns=120)[1][3]).rstrip()
    assert f"  {shown_bytes(size)}  " in line
    assert line.endswith("  max_run was over")


def test_a_file_with_two_names_counts_once_and_links_are_not_followed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "model").write_bytes(os.urandom(100_000))
    once = size_of(tmp_path)
    assert 100_000 <= once < 120_000
    (tmp_path / "same").hardlink_to(tmp_path / "a" / "model")
    (tmp_path / "link").symlink_to("/usr")
    assert size_of(tmp_path) - once < 10_000
    assert size_of(tmp_path / "a" / "model") >= 100_000
    assert size_of(tmp_path / "gone") == 0


def test_a_name_loses_its_middle():
    assert shortened("digits-1", 8) == "digits-1"
    assert shortened("train-2026-11-22-12-29-26-475", 16) == "train-20…-26-475"
    assert len(shortened("x" * 99, 17)) == 17


def test_no_cell_reaches_a_terminal_raw(on_terminal):
    for stream in (io.StringIO(), Terminal()):
        show_table([("NAME",), ("[bold]a[/] \x1b]0;title\x07",)], stream=stream)
        assert "[bold]a[/] \\x1b]0;title\\x07" in stream.getvalue()
