"""The verdicts on the outcomes of trials."""

import pytest

from herringbone.images.check import Verdict, _failure, _mpi, _runs
from herringbone.images.trial import Outcome, Setting

REPORTED = {"output/failure": b"exit code 7"}


STRANGER, WRITES, ROOT = Setting("7:7", True), Setting("7:7", False), Setting("0:0", False)
GOOD = Outcome(0, "", {"model/facts.json": b'{"python": "3.12.1", "uid": 7}'})
BAD = Outcome(1, "no\nRead-only file system\n", {})


@pytest.mark.parametrize(
    ("outcomes", "verdicts"),
    [
        ({STRANGER: GOOD}, {"a job": Verdict.OK, "any user": Verdict.OK, "read-only root": Verdict.OK}),
        (
            {STRANGER: BAD, WRITES: GOOD},
            {"a job": Verdict.OK, "any user": Verdict.OK, "read-only root": Verdict.WARNING},
        ),
        (
            {STRANGER: BAD, WRITES: BAD, ROOT: GOOD},
            {"a job": Verdict.OK, "any user": Verdict.FAILED, "read-only root": Verdict.WARNING},
        ),
        ({STRANGER: BAD, WRITES: BAD, ROOT: BAD}, {"a job": Verdict.FAILED}),
    ],
)
def test_the_strictest_setting_that_works_decides_the_findings(outcomes, verdicts):
    findings = list(_runs(outcomes, Verdict.WARNING))
    assert {finding.subject: finding.verdict for finding in findings} == verdicts
    assert all(
        finding.detail.endswith("no | Read-only file system")
        for finding in findings
        if finding.verdict is not Verdict.OK
    )


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome(7, "", REPORTED), Verdict.OK),
        (Outcome(1, "", REPORTED), Verdict.WARNING),  # the code was flattened
        (Outcome(7, "", {}), Verdict.WARNING),  # the reason is lost
        (Outcome(0, "", REPORTED), Verdict.FAILED),  # a failure that looks like a success
        (Outcome(None, "", {}), Verdict.FAILED),
    ],
)
def test_a_failed_job(outcome, verdict):
    assert _failure(outcome, Verdict.WARNING).verdict is verdict


def test_an_mpi_job_needs_two_different_ranks():
    assert (
        _mpi(Outcome(0, "[algo-1:0] trial rank 0\n[algo-1:1] trial rank 1\n", {}), Verdict.FAILED).verdict is Verdict.OK
    )
    assert _mpi(Outcome(0, "trial rank 0\ntrial rank 0\n", {}), Verdict.FAILED).verdict is Verdict.FAILED
