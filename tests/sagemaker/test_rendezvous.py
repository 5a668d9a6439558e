"""Give several hosts of a Herringbone image a shared key, and no other job one."""

import pytest

from herringbone.backends.sagemaker.rebuild import rebuild
from herringbone.backends.sagemaker.rendezvous import needs_key
from herringbone_contract.errors import InputError
from tests.sagemaker.planning import planned
from tests.sagemaker.service import described

HERRINGBONE_IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/team/herringbone/pytorch:2.13"
RENDEZVOUS = {
    "HERRINGBONE_CONTROL": "tcp::7590",
    "HERRINGBONE_KEY_FILE": "/opt/ml/input/data/herringbone/key",
}
KEY_CHANNEL = {
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
def project_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def test_the_request_contains_the_keys_location_and_not_the_key():
    request = planned(image_uri=HERRINGBONE_IMAGE, instance_count=2, environment={"MODE": "fast"}).request
    assert request["Environment"] == {"MODE": "fast", **RENDEZVOUS}
    assert request["InputDataConfig"] == [KEY_CHANNEL]


def test_the_key_is_a_file_on_every_host_in_every_input_mode():
    groups = [
        {"instance_group_name": name, "instance_type": "ml.g5.12xlarge", "instance_count": 1} for name in ("a", "b")
    ]
    mpi = {"mpi": {"enabled": True}, "instance_groups": ["a"]}
    request = planned(
        "s3://b/c", image_uri=HERRINGBONE_IMAGE, instance_groups=groups, distribution=mpi, input_mode="Pipe"
    ).request
    assert request["InputDataConfig"][-1] == KEY_CHANNEL


@pytest.mark.parametrize(
    "arguments",
    [
        {"image_uri": HERRINGBONE_IMAGE, "instance_count": 1},
        {"image_uri": "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1", "instance_count": 2},
        {"image_uri": "123456789012.dkr.ecr.us-west-2.amazonaws.com/herringbone:1", "instance_count": 2},
        {"image_uri": HERRINGBONE_IMAGE, "instance_count": 2, "container_entry_point": ["python"]},
        {"image_uri": HERRINGBONE_IMAGE, "instance_count": 2, "environment": {"HERRINGBONE_CONTROL": "tcp::1"}},
    ],
)
def test_jobs_without_a_key(arguments):
    plan = planned(**arguments)
    assert not needs_key(plan)
    assert "InputDataConfig" not in plan.request


def test_the_channels_name_is_reserved_and_the_channel_counts():
    with pytest.raises(InputError, match="channel 'herringbone': the hosts get a key under that name"):
        planned({"herringbone": "s3://b/c"}, image_uri=HERRINGBONE_IMAGE, instance_count=2)
    with pytest.raises(InputError, match=r"inputs: 21 channels \(including the key\)"):
        planned({f"c{n}": "s3://b/c" for n in range(20)}, image_uri=HERRINGBONE_IMAGE, instance_count=2)


def test_a_rebuilt_job_gets_a_new_key():
    request = planned("s3://b/c", image_uri=HERRINGBONE_IMAGE, instance_count=2, environment={"MODE": "fast"}).request
    members = {name: value for name, value in request.items() if name != "TrainingJobName"}
    plan = rebuild(described("digits-1", **members))
    assert plan.environment == {"MODE": "fast"}
    assert [channel.name for channel in plan.channels] == ["training"]
    assert needs_key(plan)
