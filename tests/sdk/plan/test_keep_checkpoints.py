"""`keep_checkpoints` in a plan: shown, sent to the hosts, and refused where nobody could keep it."""

import json

import pytest

from herringbone import Estimator
from herringbone_contract.errors import OptionError, UnsupportedError

KEEP = {"last": 3, "best": 2, "metric": "eval/loss", "objective_type": "Minimize"}


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    def make(instance_type="local_process", keep=KEEP, **options):
        options.setdefault("entry_point", "train.py")
        return Estimator(instance_type=instance_type, keep_checkpoints=keep, **options).plan()

    return make


def test_the_plan_shows_and_sends_it(plan):
    made = plan()
    assert "the newest 3, the 2 best (Minimize eval/loss); the job removes its others" in str(made)
    assert json.loads(made.hyperparameters["sagemaker_keep_checkpoints"]) == KEEP
    assert "the newest 1; the job removes its others" in str(plan(keep={"last": 1}))


@pytest.mark.parametrize(
    ("instance_type", "options", "error", "message"),
    [
        ("ml.m5.xlarge", {"role": "arn:aws:iam::111122223333:role/a"}, UnsupportedError, "removes none there"),
        ("local", {"entry_point": None, "image_uri": "mine:1"}, OptionError, "keep_checkpoints: Herringbone watches"),
        ("local_process", {"environment": {"HERRINGBONE_OBSERVER": "off"}}, OptionError, "leave that variable out"),
        (
            "local_process",
            {"metric_definitions": [{"Name": "eval/loss", "Regex": "x=(.*)"}]},
            OptionError,
            "read from the log by metric_definitions",
        ),
    ],
)
def test_it_is_refused_where_nobody_could_keep_it(plan, instance_type, options, error, message):
    with pytest.raises(error, match=message):
        plan(instance_type, **options)
