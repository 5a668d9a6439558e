"""How the outcome of a trial is judged."""

import pytest

from herringbone.images.check import Verdict, _failure, _mpi
from herringbone.images.trial import Outcome

TOLD = {"output/failure": b"exit code 7"}


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome(7, "", TOLD), Verdict.OK),
        (Outcome(1, "", TOLD), Verdict.WARNING),  # the code was flattened
        (Outcome(7, "", {}), Verdict.WARNING),  # nobody learns why
        (Outcome(0, "", TOLD), Verdict.FAILED),  # a failure that passes for a success
        (Outcome(None, "", {}), Verdict.FAILED),
    ],
)
def test_a_failed_job(outcome, verdict):
    assert _failure(outcome, Verdict.WARNING).verdict is verdict


def test_two_ranks_are_two():
    assert (
        _mpi(Outcome(0, "[algo-1:0] trial rank 0\n[algo-1:1] trial rank 1\n", {}), Verdict.FAILED).verdict is Verdict.OK
    )
    assert _mpi(Outcome(0, "trial rank 0\ntrial rank 0\n", {}), Verdict.FAILED).verdict is Verdict.FAILED
