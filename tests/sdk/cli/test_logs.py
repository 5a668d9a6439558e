"""The flags of `herringbone logs`, alone and together."""

import json
import time
from datetime import datetime, timezone

import pytest

from herringbone.api.job import attach
from herringbone.cli.__main__ import main
from herringbone.controller.log_files import LogFile
from herringbone.records.index import JobIndex, JobRecord
from herringbone.system.times import parse_moment
from herringbone_contract.errors import OptionError

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


@pytest.fixture
def logs(home, capsys):
    """Shows the log of a finished job of two ranks, whose lines are 30 s old, but for the last; returns the texts."""
    home.make()
    now = time.time()
    plan = json.dumps({"hosts": [{"name": "algo-1"}], "channels": [], "hyperparameters": {}})
    row = JobRecord(
        name="a",
        backend="local_process",
        plan=plan,
        created=now,
        ended=now,
        status="Completed",
        secondary_status="Completed",
        hosts=1,
    )
    JobIndex(home.index).add(row)
    folder = home.job("a")
    folder.logs.mkdir(parents=True)
    file = LogFile(str(folder.log("algo-1")))
    for number in range(6):
        file.feed(b"[algo-1:%d] loss %d\n" % (number % 2, number), now - 30)
    file.feed(b"[algo-1:0] done\n", now)
    file.close(now)

    def run(*words):
        code = main(["logs", "a", *words])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return run


@pytest.mark.parametrize("follow", [[], ["-f"]], ids=["printed", "followed"])
@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["--tail", "2"], ["loss 5", "done"]),
        (["--tail", "0"], []),
        (["--tail", "99", "--rank", "1"], ["loss 1", "loss 3", "loss 5"]),
        (["--tail", "1", "--rank", "1"], ["loss 5"]),
        (["--since", "10s"], ["done"]),
        (["--since", "2h", "--tail", "1", "--grep", "loss"], ["loss 5"]),
        (["--grep", "loss [0-2]$"], ["loss 0", "loss 1", "loss 2"]),
        (["--grep", "loss", "--rank", "0", "--host", "algo-1", "--tail", "2"], ["loss 2", "loss 4"]),
        (["--grep", "zebra"], []),
    ],
)
def test_flags_choose_lines(logs, words, texts, follow):
    code, lines, err = logs(*words, *follow)
    assert (code, err) == (0, "")
    assert [line.partition("] ")[2] for line in lines] == texts
    assert [json.loads(line)["text"] for line in logs(*words, *follow, "--json")[1]] == texts


def test_timestamps(logs):
    moment, prefix, *_ = logs("--timestamps", "--tail", "1")[1][0].split()
    assert abs(datetime.fromisoformat(moment).timestamp() - time.time()) < 30
    assert prefix == "[algo-1:0]"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--grep", "("], "pattern '(': no regular expression of Python: missing )"),
        (["--since", "soon"], "'soon' is no moment; write 90s, 10m, 2h or 3d, a time (11:50)"),
        (["--since", "99999999d"], "is no moment"),
        (["--host", "algo-2"], "host 'algo-2': the job has none of that name; its hosts are algo-1"),
        (["--rank", "-1"], "rank -1: ranks count from 0"),
        (["--tail", "-1"], "-1 is not in the range x>=0"),
    ],
)
def test_mistakes(logs, words, message):
    code, out, err = logs(*words)
    assert (code, out) == (2, [])
    assert message in err


def test_a_rank_that_the_job_has_not(logs, home):
    """Where the hosts count their ranks, as by their GPUs, only the log tells."""
    assert logs("--rank", "7") == (0, [], "job a: its log has no such line of rank 7\n")
    plan = json.dumps({"hosts": [{"name": "algo-1", "ranks": 2}, {"name": "algo-2", "ranks": 0}]})
    JobIndex(home.index).update("a", plan=plan)
    assert logs("--rank", "1")[0] == 0
    assert "rank 2: the job has none of that number; it has 2, from 0 on" in logs("--rank", "2", "-f")[2]


def test_a_wrong_pattern_in_python(logs):
    with pytest.raises(OptionError, match="no regular expression"):
        next(attach("a").logs(pattern="("))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", "2026-01-31T11:58:30+00:00"),
        ("2h", "2026-01-31T10:00:00+00:00"),
        ("2026-01-31T11:50:00Z", "2026-01-31T11:50:00+00:00"),
        ("2026-01-31T11:50+01:00", "2026-01-31T10:50:00+00:00"),
        ("", None),
        ("soon", None),
        ("2026-13-01", None),
        ("999999999d", None),
    ],
)
def test_a_moment(text, moment):
    parsed = parse_moment(text, NOON)
    assert parsed == (None if moment is None else datetime.fromisoformat(moment))


@pytest.mark.parametrize("text", ["9:05", "09:05", "09:05:00"])
def test_a_time_is_one_of_today_here(text):
    local = NOON.astimezone()
    assert parse_moment(text, NOON) == local.replace(hour=9, minute=5)
