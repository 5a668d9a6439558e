"""Names and paths of the contract, written out once more as AWS documents them."""

from pathlib import PurePosixPath

import pytest

from herringbone_contract.constants import JOB_NAME_PATTERN, line_prefix, masked, split_line
from herringbone_contract.paths import Paths


def test_the_tree_of_a_container():
    paths = Paths()
    assert [str(path) for path in (paths.hyperparameters, paths.input_data_config, paths.resource_config)] == [
        "/opt/ml/input/config/hyperparameters.json",
        "/opt/ml/input/config/inputdataconfig.json",
        "/opt/ml/input/config/resourceconfig.json",
    ]
    assert [str(path) for path in (paths.channel("train"), paths.code, paths.model, paths.checkpoints)] == [
        "/opt/ml/input/data/train",
        "/opt/ml/code",
        "/opt/ml/model",
        "/opt/ml/checkpoints",
    ]
    assert [str(path) for path in (paths.output_data, paths.failure, paths.success)] == [
        "/opt/ml/output/data",
        "/opt/ml/output/failure",
        "/opt/ml/output/success",
    ]


def test_the_same_tree_below_another_base():
    assert Paths(PurePosixPath("/jobs/1")).failure_record == PurePosixPath("/jobs/1/output/failure.json")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (b"[algo-1:0] loss 0.5\n", ("algo-1", 0, b"loss 0.5\n")),
        (b"[algo-2] starting", ("algo-2", None, b"starting")),
        (b"[algo-1:3] [algo-1:0] nested", ("algo-1", 3, b"[algo-1:0] nested")),
        (b"no prefix", (None, None, b"no prefix")),
        (b"[2026-11-21 11:44] stamped", (None, None, b"[2026-11-21 11:44] stamped")),
    ],
)
def test_log_lines(line, parts):
    assert split_line(line) == parts


def test_a_prefix_reads_back():
    assert split_line(line_prefix("algo-1", 12) + b"x") == ("algo-1", 12, b"x")
    assert split_line(line_prefix("algo-1") + b"x") == ("algo-1", None, b"x")


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("digits-1", True),
        ("a", True),
        ("a" * 63, True),
        ("a" * 64, False),
        ("-a", False),
        ("a-", False),
        ("a_b", False),
    ],
)
def test_job_names(name, legal):
    assert (JOB_NAME_PATTERN.fullmatch(name) is not None) is legal


def test_secrets_are_masked_by_name():
    settings = {"AWS_SECRET_ACCESS_KEY": "x", "HF_TOKEN": "x", "db_password": "x", "EPOCHS": "3"}
    assert masked(settings) == {
        "AWS_SECRET_ACCESS_KEY": "******",
        "HF_TOKEN": "******",
        "db_password": "******",
        "EPOCHS": "3",
    }
