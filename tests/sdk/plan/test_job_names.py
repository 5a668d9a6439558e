"""Job names: made from the script's name and the time, and checked as SageMaker checks them."""

from datetime import datetime

import pytest

from herringbone.plan.names import check_job_name, default_job_name
from herringbone_contract.errors import JobNameError


def test_a_default_name_ends_in_the_time():
    moment = datetime(2026, 11, 21, 9, 5, 7, 42_000)
    assert default_job_name("my_digits", moment) == "my-digits-2026-11-21-09-05-07-042"
    assert default_job_name("x" * 80, moment) == "x" * 39 + "-2026-11-21-09-05-07-042"
    assert default_job_name("__", moment) == "job-2026-11-21-09-05-07-042"


def test_a_name_has_letters_digits_and_hyphens():
    assert check_job_name("a-1") == "a-1"
    for name in ("", "-a", "a-", "a_b", "../a", "a" * 64, "a\n", "é"):
        with pytest.raises(JobNameError, match="use 1 to 63 letters, digits and hyphens"):
            check_job_name(name)


@pytest.mark.parametrize(
    ("name", "hint"), [("\u00fcn\u00ef", "; did you mean 'uni'?"), ("\u6570\u636e1", ""), ("-", "")]
)
def test_a_proposal_is_like_the_name(name, hint):
    with pytest.raises(JobNameError) as caught:
        check_job_name(name)
    assert str(caught.value).partition("no hyphen")[2] == hint
