"""A failure read back from its text, as a service returns it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone_contract.errors import JobFailedError
from herringbone_contract.failure import Failure, Frame
from herringbone_contract.failure_text import parse_summary

WORD = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
LINE = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Zs")), max_size=30).map(str.strip)
FRAME = st.builds(Frame, file=WORD.map("src/{}.py".format), line=st.integers(1, 9_999), function=WORD, source=LINE)
PLACE = st.one_of(
    st.tuples(st.just(None), st.just(None)),
    st.tuples(st.just("algo-1"), st.just(None)),
    st.tuples(st.just("algo-12"), st.integers(0, 512)),
)
FAILURE = st.builds(
    lambda place, exception, message, **rest: Failure(place[0], place[1], exception=exception, message=message, **rest),
    PLACE,
    st.one_of(st.just(""), WORD),
    LINE.filter(lambda text: "exit code" not in text),
    exit_code=st.sampled_from([1, 3, 137, 139]),
    frames=st.lists(FRAME, max_size=3).map(tuple),
    log_tail=st.lists(LINE, max_size=3).map(tuple),
)


@given(FAILURE)
def test_reading_returns_the_record_that_was_written(failure):
    assert parse_summary(failure.render()) == failure


def test_a_message_of_several_lines_stays_one():
    failure = Failure("algo-1", 0, 1, "ValueError", "expected 3\n\ngot 4", (Frame("train.py", 2, "<module>", ""),))
    assert parse_summary(failure.render()) == failure


@pytest.mark.parametrize("text", ["", "ExecuteUserScriptError:\nExitCode 1", "rank 0: no", "the job: it broke", "a: b"])
def test_a_text_of_another_form_is_no_failure(text):
    assert parse_summary(text) is None


def test_a_failure_without_a_program_has_no_exit_code_and_a_remedy():
    failure = Failure(exit_code=0, exception="CapacityError", message="Unable to provision.")
    assert failure.render() == "the job: CapacityError: Unable to provision."
    assert "another instance_type or region" in str(JobFailedError("digits-1", failure))
    assert Failure(exit_code=0, message="who knows").render() == "the job: who knows"
