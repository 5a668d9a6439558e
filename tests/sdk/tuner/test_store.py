"""The folder of a tuning job: what its files keep."""

from tests.sdk.tuner.test_runner import make_store

from herringbone.tuner.definition import PriorTrial
from herringbone.tuner.store import TrialRecord
from herringbone.tuner.strategies.choose import strategy_for


def test_numbers_that_json_cannot_hold_survive(tmp_path):
    store = make_store(tmp_path / "nan")
    store.add_proposal(strategy_for(store.record().definition).propose([], 1)[0], "nan-001")
    ended = TrialRecord(
        number=0, job="nan-001", values={}, proposed=1.0, status="Completed", curve=(1.0, float("inf")), ended=2.0,
        objective=float("nan"),
    )  # fmt: skip
    store.add_end(ended)
    (record,) = store.trials()
    assert record.curve == (1.0, float("inf"))
    assert record.objective != record.objective


def test_settings_that_json_cannot_hold_survive(tmp_path):
    priors = (PriorTrial({"lr": 0.1}, float("inf"), "parent", "parent-001"),)
    store = make_store(tmp_path / "inf", static={"clip": float("inf")}, priors=priors)
    definition = store.record().definition
    assert (definition.static, definition.priors) == ({"clip": float("inf")}, priors)


def test_trials_after_a_lost_line_do_not_count(tmp_path):
    store = make_store(tmp_path / "gap")
    proposals = strategy_for(store.record().definition).propose([], 4)
    for proposal in (proposals[0], *proposals[2:]):
        store.add_proposal(proposal, f"gap-{proposal.number + 1:03d}")
    assert [record.number for record in store.trials()] == [0]
    with (store.path / "trials.jsonl").open("ab") as file:
        file.write(b'{"kind":"ended","number":0,"status":"\xff","t":1.0}\n')
    assert [record.number for record in store.trials()] == [0]
