"""Names of tuning jobs and of trials."""

from datetime import datetime

import pytest

from herringbone.tuner.definition import check_tuning_name, default_tuning_name, trial_job_name
from herringbone_contract.errors import JobNameError

NOW = datetime(2026, 11, 21, 9, 5, 7)


@pytest.mark.parametrize("base", ["train", "a" * 80, "--", "my_script.v2", "x" * 17 + "-" + "y" * 9])
def test_generated_names_are_names(base):
    name = default_tuning_name(base, NOW)
    assert check_tuning_name(name) == name
    assert name.endswith("-261121-090507")


@pytest.mark.parametrize("name", ["", "-a", "a-", "a_b", "a/b", "../a", "a" * 33, None, 7])
def test_other_names_are_refused(name):
    with pytest.raises(JobNameError, match="1 to 32 letters"):
        check_tuning_name(name)


def test_the_name_of_a_trial_follows_from_its_number():
    assert [trial_job_name("digits", number) for number in (0, 9, 1233)] == ["digits-001", "digits-010", "digits-1234"]
