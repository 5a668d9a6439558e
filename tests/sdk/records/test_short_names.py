"""The job that a short name stands for."""

import pytest

from herringbone.records.short_names import find_name
from herringbone_contract.errors import JobNotFoundError

NAMES = ["train-9", "digits-10", "digits-1", "digits"]


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("digits-1", "digits-1"),  # whole, although another begins with it
        ("digits", "digits"),
        ("digits-10", "digits-10"),
        ("tr", "train-9"),
        ("-", "train-9"),
        ("zebra", "zebra"),  # a service may know it
        ("igits-1", "igits-1"),
        ("Tr", "Tr"),
        ("", ""),
    ],
)
def test_a_whole_name_a_unique_beginning_or_the_newest(word, name):
    assert find_name(word, NAMES) == name


def test_an_empty_word_is_never_the_only_job():
    assert find_name("", ["only"]) == ""


def test_several_matches_are_listed_newest_first_and_at_most_five():
    with pytest.raises(
        JobNotFoundError, match=r"^3 jobs have names that begin with 'd': digits-10, digits-1, digits; "
    ):
        find_name("d", NAMES)
    with pytest.raises(JobNotFoundError, match="t-0, t-1, t-2, t-3, t-4 and 2 more; write more of the name"):
        find_name("t", [f"t-{number}" for number in range(7)])


def test_the_newest_of_no_jobs():
    with pytest.raises(JobNotFoundError, match="no job has run on this machine yet"):
        find_name("-", [])
