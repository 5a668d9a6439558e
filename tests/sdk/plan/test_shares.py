"""Channels whose files the hosts divide: a host without a file would train on nothing."""

from __future__ import annotations

import pytest

from herringbone import Estimator, FileSystemInput, PyTorch, TrainingInput
from herringbone_contract.errors import InputError, UnsupportedError

GROUPS = [
    {"instance_group_name": name, "instance_type": "local_process", "instance_count": 2} for name in ("one", "two")
]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder with two files, one of them deeper, and a script next to it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").touch()
    (tmp_path / "data" / "deep" / "empty").mkdir(parents=True)
    for name in ("a.csv", "deep/b.csv"):
        (tmp_path / "data" / name).touch()
    return tmp_path / "data"


def sharded(address="data", **members):
    return TrainingInput(address, distribution="ShardedByS3Key", **members)


def on_hosts(count):
    return Estimator("train.py", instance_type="local_process", instance_count=count)


def test_fewer_files_than_hosts_are_refused_by_name(data):
    on_hosts(2).plan(sharded())
    on_hosts(3).plan("data")
    with pytest.raises(InputError, match=r"channel 'training': .* divides 2 files of data among 3 hosts, so 1 would"):
        on_hosts(3).plan(sharded())
    with pytest.raises(InputError, match=r"channel 'x': .* divides 1 file of data/a.csv among 2 hosts"):
        on_hosts(2).plan({"x": sharded("data/a.csv")})
    on_hosts(1).plan(sharded("data/a.csv"))


def test_only_hosts_that_get_the_channel_count(data):
    estimator = Estimator("train.py", instance_groups=GROUPS)
    estimator.plan(sharded(instance_groups=["two"]))
    with pytest.raises(InputError, match="among 4 hosts, so 2 would train on nothing"):
        estimator.plan(sharded())


def test_records_of_a_manifest_are_divided(data):
    (data / "lines").write_text('{"label": 1}\n{"label": 2}\n')
    source = {"s3_data_type": "AugmentedManifestFile", "attribute_names": ["label"], "input_mode": "Pipe"}
    on_hosts(2).plan(sharded("data/lines", **source))
    with pytest.raises(InputError, match="divides 2 files of data/lines among 3 hosts"):
        on_hosts(3).plan(sharded("data/lines", **source))


def test_a_file_system_is_a_folder_of_own_hosts_and_an_address_at_sagemaker(data):
    def plan(path, mode="ro", **options):
        estimator = Estimator("train.py", **{"instance_type": "local_process", **options})
        return estimator.plan(FileSystemInput("fs-0123", "EFS", str(path), mode))

    (channel,) = plan(data).channels
    assert (channel.path, channel.input.s3_data) == (str(data), f"efs://fs-0123{data}")
    with pytest.raises(InputError, match=r"channel 'training': /no/such: no such file or folder"):
        plan("/no/such")
    # The channel is a link to the folder there.
    assert plan(data, "rw").channels[0].path == str(data)
    with pytest.raises(UnsupportedError, match=r"leave file_system_access_mode='rw' out"):
        plan(data, "rw", instance_type="local", image_uri="i")


def test_data_that_is_uploaded_counts_too(data, tmp_path):
    pytest.importorskip("boto3")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "c.csv").touch()
    service = {"instance_type": "ml.c5.xlarge", "image_uri": "i", "role": "arn:aws:iam::123456789012:role/r"}
    with pytest.raises(InputError, match="divides 2 files of data among 3 hosts"):
        PyTorch("train.py", instance_count=3, **service).plan(sharded())
    # The upload follows links inside the folder.
    (data / "linked").symlink_to(data / "deep", target_is_directory=True)
    PyTorch("train.py", instance_count=3, **service).plan(sharded())
