"""A failure as text of limited length, and as the record that travels."""

import pytest

from herringbone_contract.errors import ContractError, JobFailedError
from herringbone_contract.failure import Failure, Frame, describe_exit, exit_code_of, summary
from herringbone_contract.failure_text import parse_failure

FAILURE = Failure(
    host="algo-1",
    rank=1,
    exit_code=1,
    exception="ValueError",
    message="bad batch",
    frames=(Frame("train.py", 9, "main", "run()"), Frame("train.py", 4, "run", "raise ValueError(batch)")),
    log_tail=("epoch 1", "epoch 2"),
)


def test_the_head_names_the_rank_and_the_event():
    assert FAILURE.render() == (
        "rank 1 on algo-1: ValueError: bad batch (exit code 1)\n"
        "  at train.py:9 in main: run()\n"
        "  at train.py:4 in run: raise ValueError(batch)\n"
        "  | epoch 1\n"
        "  | epoch 2"
    )


def test_a_failed_job_is_one_short_block_next_to_a_log_that_was_shown():
    assert str(JobFailedError("digits-1", FAILURE, advice="give another batch", log_shown=True)) == (
        "job digits-1 failed: rank 1 on algo-1: ValueError: bad batch (exit code 1)\n"
        "  at train.py:4 in run: raise ValueError(batch)\n"
        "give another batch\n"
        "the log above has more"
    )
    silent = Failure(host="algo-1", rank=0, exit_code=7)
    assert (
        str(JobFailedError("digits-1", silent, log_shown=True)) == "job digits-1 failed: rank 0 on algo-1: exit code 7"
    )
    assert str(JobFailedError("digits-1", FAILURE)) == (
        f"job digits-1 failed: {FAILURE.render()}\nthe whole log: herringbone logs digits-1"
    )


@pytest.mark.parametrize(
    ("failure", "head"),
    [
        (Failure(host="algo-2", exit_code=137), "algo-2: exit code 137, killed by SIGKILL"),
        (Failure(exit_code=1, message="no MPI here"), "the job: exit code 1: no MPI here"),
        (Failure(host="algo-1", rank=0, exit_code=1, exception="KeyError"), "rank 0 on algo-1: KeyError (exit code 1)"),
    ],
)
def test_heads(failure, head):
    assert failure.render() == head


def test_control_characters_of_the_script_are_shown_as_text():
    failure = Failure(
        host="algo-1",
        exception="E\x1b[2J",
        message="two\nlines\x07",
        frames=(Frame("a\x1b.py", 1, "f", "x\x9b"),),
        log_tail=("\x1b[31mred", " 10 %\r 20 %\r", "tab\there", "ä"),
    )
    assert failure.render() == (
        "algo-1: E\\x1b[2J: two\nlines\\x07 (exit code 1)\n"
        "  at a\\x1b.py:1 in f: x\\x9b\n"
        "  | \\x1b[31mred\n"
        "  |  20 %\n"
        "  | tab\there\n"
        "  | ä"
    )


def test_a_limit_drops_old_log_lines_first_then_outer_frames():
    inner = "rank 1 on algo-1: ValueError: bad batch (exit code 1)\n  at train.py:4 in run: raise ValueError(batch)"
    assert FAILURE.render(len(FAILURE.render()) - 1) == FAILURE.render().replace("  | epoch 1\n", "")
    assert FAILURE.render(len(inner)) == inner
    assert inner.partition("\n")[0] == FAILURE.render(len(inner.partition("\n")[0]))
    assert FAILURE.render(20) == "rank 1 on algo-1:..."


def test_repeated_log_lines_each_count():
    """Count equal lines one by one: they were once looked up by text, so one that fitted added all its copies."""
    failure = Failure(host="algo-1", rank=0, exit_code=1, log_tail=("same line",) * 200)
    assert len(summary(failure)) <= 1_024
    assert summary(failure).count("same line") == (1_024 - len("rank 0 on algo-1: exit code 1")) // len(
        "\n  | same line"
    )


def test_the_record_travels_whole():
    assert parse_failure(FAILURE.to_json()) == FAILURE


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"frames": [], "log_tail": [], "colour": 1}', '{"frames": [1]}'])
def test_a_damaged_record(text):
    with pytest.raises(ContractError, match=r"failure\.json cannot be read"):
        parse_failure(text)


def test_exit_codes_follow_the_shell():
    assert [exit_code_of(code) for code in (0, 3, -9, -15)] == [0, 3, 137, 143]
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(139) == "exit code 139, killed by SIGSEGV"
    assert describe_exit(255) == "exit code 255"
