"""The inputs of `fit`, converted to channels."""

from pathlib import Path

import pytest

from herringbone.plan.inputs import Channel, FileSystemInput, TrainingInput, local_path, parse_inputs, share
from herringbone_contract.errors import InputError

HERE = Path("/home/me")


@pytest.mark.parametrize(
    ("inputs", "channels"),
    [
        (None, []),
        ("data", [("training", "/home/me/data")]),
        (Path("/data"), [("training", "/data")]),
        ("file://data/train", [("training", "/home/me/data/train")]),
        ("file:///data/with%20space", [("training", "/data/with space")]),
        ("/data/100%", [("training", "/data/100%")]),
        ({"b": "x", "a": "/y/../z"}, [("a", "/z"), ("b", "/home/me/x")]),
        ("s3://bucket/prefix", [("training", None)]),
        (TrainingInput("data"), [("training", "/home/me/data")]),
    ],
)
def test_inputs_become_named_channels(inputs, channels):
    assert [(channel.name, channel.path) for channel in parse_inputs(inputs, base=HERE)] == channels


@pytest.mark.parametrize(
    ("address", "folders", "expected"),
    [
        ("ts=00%3A00", ["ts=00%3A00", "ts=00:00"], "ts=00%3A00"),
        ("ts=00%3A00", [], "ts=00%3A00"),
        ("ts=00%3A00", ["ts=00:00"], "ts=00:00"),
        # As quote() and as_uri() write it.
        ("a%20b", ["a%20b"], "a b"),
    ],
)
def test_an_address_is_read_as_its_name_first(address, folders, expected, tmp_path):
    for folder in folders:
        (tmp_path / folder).mkdir()
    assert local_path(f"file://{tmp_path}/{address}", base=HERE) == tmp_path / expected


def test_every_member_of_an_input_is_kept():
    source = TrainingInput("s3://b/p", "ShardedByS3Key", content_type="text/csv", instance_groups=["a"])
    (channel,) = parse_inputs({"train": source}, base=HERE)
    assert channel == Channel(
        name="train",
        input=TrainingInput("s3://b/p", "ShardedByS3Key", content_type="text/csv", instance_groups=("a",)),
    )
    assert channel.sharded


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a b": "x"}, "channel 'a b': a name has 1 to 64 letters"),
        ({"..": "x"}, "channel '..': a name has 1 to 64 letters"),
        ({"": "x"}, "channel '': a name has"),
        ({"a": 3}, "channel 'a': expected a path, an address, a TrainingInput or a FileSystemInput, got int"),
        (
            {"a": FileSystemInput("fs-1", "NFS", "/x")},
            "channel 'a': FileSystemInput: file_system_type: 'NFS' is none of 'EFS', 'FSxLustre'",
        ),
        (
            {"a": TrainingInput("x", "Sharded")},
            "channel 'a': TrainingInput: distribution: 'Sharded' is none of 'FullyReplicated', 'ShardedByS3Key'",
        ),
        ({"a": TrainingInput("x", content_type=3)}, "channel 'a': TrainingInput: content_type: expected str, got int"),
    ],
)
def test_a_wrong_input_is_named(inputs, message):
    with pytest.raises(InputError) as caught:
        parse_inputs(inputs, base=HERE)
    assert message in str(caught.value)


def test_shares_are_disjoint_and_complete():
    files = [f"part-{number}" for number in range(7)]
    shares = [share(files, host=host, hosts=3) for host in range(3)]
    assert shares == [["part-0", "part-3", "part-6"], ["part-1", "part-4"], ["part-2", "part-5"]]
