"""Several hosts of our image get a key to know each other by; nobody else gets one."""

import pytest

from herringbone.backends.sagemaker.rebuild import rebuild
from herringbone.backends.sagemaker.rendezvous import needs_key
from herringbone_contract.errors import InputError
from tests.sagemaker.planning import planned
from tests.sagemaker.service import described

OURS = "123456789012.dkr.ecr.us-west-2.amazonaws.com/team/herringbone/pytorch:2.13"
MEETING = {
    "HERRINGBONE_CONTROL": "tcp::7590",
    "HERRINGBONE_KEY_FILE": "/opt/ml/input/data/herringbone/key",
}
KEY = {
    "ChannelName": "herringbone",
    "DataSource": {
        "S3DataSource": {
            "S3DataType": "S3Prefix",
            "S3Uri": "s3://${default_bucket}/herringbone/code/keys/${key_id}",
            "S3DataDistributionType": "FullyReplicated",
        }
    },
    "InputMode": "File",
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def test_the_request_says_where_the_key_is_and_not_what():
    request = planned(image_uri=OURS, instance_count=2, environment={"MODE": "fast"}).request
    assert request["Environment"] == {"MODE": "fast", **MEETING}
    assert request["InputDataConfig"] == [KEY]


def test_the_key_is_a_file_for_helpers_too_and_whatever_the_data_comes_through():
    groups = [
        {"instance_group_name": name, "instance_type": "ml.g5.12xlarge", "instance_count": 1} for name in ("a", "b")
    ]
    mpi = {"mpi": {"enabled": True}, "instance_groups": ["a"]}
    request = planned("s3://b/c", image_uri=OURS, instance_groups=groups, distribution=mpi, input_mode="Pipe").request
    assert request["InputDataConfig"][-1] == KEY


@pytest.mark.parametrize(
    "given",
    [
        {"image_uri": OURS, "instance_count": 1},
        {"image_uri": "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1", "instance_count": 2},
        {"image_uri": "123456789012.dkr.ecr.us-west-2.amazonaws.com/herringbone:1", "instance_count": 2},
        {"image_uri": OURS, "instance_count": 2, "container_entry_point": ["python"]},
        {"image_uri": OURS, "instance_count": 2, "environment": {"HERRINGBONE_CONTROL": "tcp::1"}},
    ],
)
def test_who_needs_none(given):
    made = planned(**given)
    assert not needs_key(made)
    assert "InputDataConfig" not in made.request


def test_the_name_is_taken_and_the_channel_counts():
    with pytest.raises(InputError, match="channel 'herringbone': the hosts get a key under that name"):
        planned({"herringbone": "s3://b/c"}, image_uri=OURS, instance_count=2)
    with pytest.raises(InputError, match=r"inputs: 21 channels \(the hosts' key's own included\)"):
        planned({f"c{n}": "s3://b/c" for n in range(20)}, image_uri=OURS, instance_count=2)


def test_a_job_that_is_found_again_gets_a_key_of_its_own():
    request = planned("s3://b/c", image_uri=OURS, instance_count=2, environment={"MODE": "fast"}).request
    members = {name: value for name, value in request.items() if name != "TrainingJobName"}
    plan = rebuild(described("digits-1", **members))
    assert plan.environment == {"MODE": "fast"}
    assert [channel.name for channel in plan.channels] == ["training"]
    assert needs_key(plan)
