"""A script with planted faults, restarted by hand: each fault is found in the records of its steps, and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from herringbone_contract.rehearsal.comparison import compare, repeatable
from herringbone_contract.rehearsal.records import Run
from herringbone_contract.rehearsal.verdict import Outcome, Reason
from tests.parallel.torch.fingerprints.scripts import restarted, undisturbed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two healthy runs; what is not restored matters after a restart only."""
    return [undisturbed(tmp_path_factory.mktemp("runs") / name) for name in "ab"]


@pytest.mark.parametrize("steps", [3, 6, 11])
def test_a_healthy_restart_is_equal(tmp_path: Path, runs: list[Run], steps: int) -> None:
    assert repeatable(*runs).outcome is Outcome.EQUAL
    verdict = compare(runs, restarted(tmp_path / "c", steps=steps))
    assert (verdict.outcome, verdict.findings) == (Outcome.EQUAL, ())
    assert (verdict.steps, verdict.redone) == (12, steps % 4)


@pytest.mark.parametrize(
    ("fault", "reasons"),
    [
        ("model", [(Reason.WEIGHTS, 5)]),
        # The learning rate is a part of the optimizer's state.
        ("optimizer", [(Reason.OPTIMIZER, 5), (Reason.SETTINGS, 5)]),
        # The optimizer restores the rate, and the scheduler counts from the begin.
        ("scheduler", [(Reason.SETTINGS, 7)]),
        ("random", [(Reason.CONTENTS, 5)]),
    ],
)
def test_a_state_that_is_not_restored_is_named(
    tmp_path: Path, runs: list[Run], fault: str, reasons: list[tuple[Reason, int]]
) -> None:
    verdict = compare(runs, restarted(tmp_path / "c", {fault}))
    assert [(finding.reason, finding.step) for finding in verdict.findings] == reasons
    assert verdict.findings[0].tensor == "0.weight"


def test_four_faults_at_once_are_named(tmp_path: Path) -> None:
    faults = {"scheduler", "augmentation", "optimizer", "set order"}
    runs = [undisturbed(tmp_path / name, faults) for name in "ab"]
    assert [finding.reason for finding in repeatable(*runs).findings] == [Reason.ORDER, Reason.CONTENTS]
    verdict = compare(runs, restarted(tmp_path / "c", faults))
    # The restart is not blamed for what is not repeatable anyway.
    assert [finding.reason for finding in verdict.findings] == [Reason.OPTIMIZER, Reason.SETTINGS]
    assert "is empty" in verdict.findings[0].text
    assert "set or a dict" in verdict.notes[0]


def test_an_augmentation_without_a_seed_is_told_from_an_order(tmp_path: Path) -> None:
    runs = [undisturbed(tmp_path / name, {"augmentation"}) for name in "ab"]
    assert [finding.reason for finding in repeatable(*runs).findings] == [Reason.CONTENTS]
    verdict = compare(runs, restarted(tmp_path / "c", {"augmentation"}))
    assert (verdict.outcome, verdict.findings) == (Outcome.UNKNOWN, ())
