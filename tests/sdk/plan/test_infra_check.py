"""The option `enable_infra_check`: own hosts examine themselves, a service has a member for it."""

import pytest

from herringbone import Estimator
from herringbone_contract.errors import OptionError

SERVICE = {
    "instance_type": "ml.m5.xlarge",
    "role": "arn:aws:iam::111122223333:role/a",
    "image_uri": "111122223333.dkr.ecr.us-west-2.amazonaws.com/mine:1",
}


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


@pytest.mark.parametrize(("value", "sent"), [(None, None), (True, "true"), (False, "false")])
def test_hosts_get_the_users_wish_where_they_are_own_hosts(value, sent):
    made = Estimator("train.py", instance_type="local_process", enable_infra_check=value).plan()
    assert made.hyperparameters.get("sagemaker_enable_infra_check") == sent
    there = Estimator("train.py", enable_infra_check=value, **SERVICE).plan()
    assert "sagemaker_enable_infra_check" not in there.hyperparameters
    assert there.request.get("InfraCheckConfig") == (None if value is None else {"EnableInfraCheck": value})


def test_a_program_that_is_not_started_here_is_not_examined_either():
    with pytest.raises(OptionError, match="enable_infra_check: Herringbone watches the scripts that it starts itself"):
        Estimator(image_uri="mine:1", instance_type="local", enable_infra_check=True).plan()
