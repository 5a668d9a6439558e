"""A folder of checkpoints is rolled back behind a fault."""

import json
import os

import pytest

from herringbone_contract.checkpoint.manifest import NEWEST, Manifest, to_json
from herringbone_contract.checkpoint.roll_back import passed_over, roll_back
from herringbone_contract.errors import ContractError
from herringbone_contract.failure import Failure
from herringbone_contract.failure_text import parse_failure
from herringbone_contract.faults.bad_steps import BadSteps


def ours(folder, step, time, tag=None):
    """Write a checkpoint of `Training`, or of a script's own `save` where the step is None."""
    path = folder / (tag or f"step-{step}")
    path.mkdir(parents=True)
    extra = {} if step is None else {"extra": {"step": step}}
    (path / "manifest.json").write_bytes(to_json(Manifest("s", path.name, time, "torch", 1, {}, {}, {}, extra)))
    os.utime(path / "manifest.json", (time, time))
    (folder / NEWEST).write_text(path.name)
    return path


def file(path, time, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time, time))


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_checkpoints_with_a_step_are_compared_with_the_steps(tmp_path):
    # Times say nothing here: a save in the background may end late.
    for step in (5, 10, 11, 15):
        ours(tmp_path, step, 100.0 + step)
    for number in (10, 20):
        file(tmp_path / "run" / f"checkpoint-{number}" / "trainer_state.json", 100.0)
        file(tmp_path / "lightning" / f"epoch=1-step={number}.ckpt", 100.0)
    assert roll_back(tmp_path, BadSteps(50.0, 10, 14, 2)) == [
        "lightning/epoch=1-step=20.ckpt",
        "run/checkpoint-20",
        "step-11",
        "step-15",
    ]
    assert (tmp_path / NEWEST).read_text().strip() == "step-10"
    assert (tmp_path / ".step-15.1.set-aside" / "manifest.json").exists()
    assert (tmp_path / "run" / ".checkpoint-20.1.set-aside").is_dir()
    assert passed_over(tmp_path) == (14, 2)


def test_files_are_compared_with_the_time_of_the_last_good_loss(tmp_path):
    file(tmp_path / "a.pt", 10.0)
    file(tmp_path / "last.pt", 30.0)
    file(tmp_path / "epoch-1" / "weights.bin", 10.0)
    file(tmp_path / "epoch-2" / "weights.bin", 30.0)
    file(tmp_path / "log.csv", 30.0)
    file(tmp_path / "runs" / "events.out.tfevents.1", 30.0)
    ours(tmp_path, None, 30.0, "mine")
    assert roll_back(tmp_path, BadSteps(20.0)) == ["epoch-2", "last.pt", "mine"]
    assert [name for name in names(tmp_path) if not name.startswith(".")] == [
        *("a.pt", "epoch-1/weights.bin", "log.csv", "runs/events.out.tfevents.1")
    ]
    # Nobody knows a step, so no data is passed over.
    assert passed_over(tmp_path) == (0, 0)


def test_a_second_fault_passes_over_more_and_keeps_what_was_set_aside(tmp_path):
    ours(tmp_path, 10, 5.0)
    ours(tmp_path, 15, 6.0)
    roll_back(tmp_path, BadSteps(5.5, 12, 14, 1))
    ours(tmp_path, 15, 8.0)
    assert roll_back(tmp_path, BadSteps(7.0, 14, 17, 1)) == ["step-15"]
    assert passed_over(tmp_path) == (17, 1)
    assert {path.name for path in tmp_path.glob(".step-15.*")} == {".step-15.1.set-aside", ".step-15.2.set-aside"}
    # A fault whose step nobody knows takes nothing back.
    roll_back(tmp_path, BadSteps(7.0))
    assert passed_over(tmp_path) == (17, 1)


def test_an_attempt_without_a_good_loss_distrusts_the_checkpoint_that_it_began_from(tmp_path):
    for step in (5, 10):
        ours(tmp_path, step, 5.0)
    assert roll_back(tmp_path, BadSteps(9.0, None, 14, 1)) == []
    assert roll_back(tmp_path, BadSteps(19.0, None, 15, 1)) == ["step-10"]
    # A second host of the folder finds all done.
    assert roll_back(tmp_path, BadSteps(19.0, None, 15, 1)) == []
    assert roll_back(tmp_path, BadSteps(29.0, None, 16, 1)) == ["step-5"]
    assert not (tmp_path / NEWEST).exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"end": "x", "batches": 1}', '{"end": -3, "batches": -1}', "[" * 9999]
)
def test_the_note_may_be_anything(tmp_path, text):
    (tmp_path / ".roll-back.json").write_text(text)
    assert passed_over(tmp_path) == passed_over(None) == (0, 0)


def test_a_folder_that_is_missing_has_nothing_to_set_aside(tmp_path):
    assert roll_back(tmp_path / "none", BadSteps(1.0, 1, 2, 1)) == []


def test_the_steps_travel_with_the_failure():
    failure = Failure("algo-1", 0, message="x", fault="nan_loss", bad=BadSteps(7.5, 3, 4, 1))
    assert parse_failure(failure.to_json()) == failure
    old = json.loads(failure.to_json())
    del old["bad"]
    assert parse_failure(json.dumps(old)).bad is None
    with pytest.raises(ContractError):
        parse_failure("{}")


def test_a_trainers_folder_that_nobody_has_filled_goes_by_its_number(tmp_path):
    (tmp_path / "checkpoint-32").mkdir()
    (tmp_path / "checkpoint-9").mkdir()
    assert roll_back(tmp_path, BadSteps(1.0, 13, 14)) == ["checkpoint-32"]


@pytest.mark.parametrize(
    ("name", "text", "led"),
    [
        ("last.pt", None, "step-8.pt"),
        ("latest", "step-12.pt\n", "step-8.pt\n"),
        ("latest_checkpointed_iteration.txt", "12", "8"),
    ],
)
def test_what_leads_to_a_checkpoint_set_aside_leads_to_the_newest_left(tmp_path, name, text, led):
    for step in (4, 8, 12):
        file(tmp_path / f"step-{step}.pt", float(step))
    if text is None:
        (tmp_path / name).symlink_to("step-12.pt")
    else:
        file(tmp_path / name, 13.0, text)
    assert roll_back(tmp_path, BadSteps(9.0, 9, 11, 1)) == ["step-12.pt"]
    assert (os.readlink(tmp_path / name) if text is None else (tmp_path / name).read_text()) == led
    # Nothing is left that it could lead to.
    assert roll_back(tmp_path, BadSteps(1.0, 0, 12, 1)) == ["step-4.pt", "step-8.pt"]
    assert not os.path.lexists(tmp_path / name)


def test_another_job_passes_data_over_only_where_it_goes_on_from_a_checkpoint(tmp_path):
    ours(tmp_path, 10, 5.0)
    roll_back(tmp_path, BadSteps(5.5, 12, 14, 1), job="one")
    assert passed_over(tmp_path, "one") == passed_over(tmp_path, "two") == (14, 1)
    (tmp_path / "step-10").rename(tmp_path / ".step-10")
    assert (passed_over(tmp_path, "one"), passed_over(tmp_path, "two")) == ((14, 1), (0, 0))
