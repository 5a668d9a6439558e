"""A job in containers reads its data from a mock of S3, and writes model and checkpoints there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.aws_mock import s3, s3_server

from herringbone import TrainingInput

__all__ = ["s3", "s3_server"]

pytestmark = pytest.mark.docker

SCRIPT = """
import os, pathlib
seen = sorted(path.name for path in pathlib.Path(os.environ["SM_CHANNEL_TRAINING"]).iterdir())
pathlib.Path("/opt/ml/checkpoints", os.environ["SM_CURRENT_HOST"]).write_text(",".join(seen))
pathlib.Path(os.environ["SM_MODEL_DIR"], "w").write_text("1")
"""


def test_data_model_and_checkpoints_of_containers_travel(submit: Any, s3: Any) -> None:
    for name in ("a.csv", "b.csv", "c.csv"):
        s3.put_object(Bucket="mine", Key=f"data/{name}", Body=name.encode())
    s3.put_object(Bucket="mine", Key="checkpoints/algo-9", Body=b"earlier")
    job = submit(
        SCRIPT,
        instance_count=2,
        inputs=TrainingInput("s3://mine/data/", distribution="ShardedByS3Key"),
        output_path="s3://mine/models",
        checkpoint_s3_uri="s3://mine/checkpoints",
    ).wait()
    assert job.status == "Completed"
    assert job.model_data == f"s3://mine/models/{job.name}/output/model.tar.gz"
    s3.head_object(Bucket="mine", Key=f"models/{job.name}/output/model.tar.gz")
    checkpoints = {
        entry["Key"]: s3.get_object(Bucket="mine", Key=entry["Key"])["Body"].read()
        for entry in s3.list_objects_v2(Bucket="mine", Prefix="checkpoints/")["Contents"]
    }
    assert checkpoints == {
        "checkpoints/algo-1": b"a.csv,c.csv",
        "checkpoints/algo-2": b"b.csv",
        "checkpoints/algo-9": b"earlier",
    }


def test_containers_read_fifos_that_the_controller_fills(
    submit: Any, home: Any, s3: Any, of_home: Callable[[], list[str]]
) -> None:
    for name in "abc":
        s3.put_object(Bucket="mine", Key=f"data/{name}", Body=name.encode())
    job = submit(
        "import os\n"
        "channel = os.environ['SM_CHANNEL_TRAINING']\n"
        "print(*[open(f'{channel}_{epoch}').read() for epoch in range(3)])\n"
        "print(open('/opt/ml/input/data/training_3').read(1))",
        inputs=TrainingInput("s3://mine/data/", distribution="ShardedByS3Key", input_mode="Pipe"),
        instance_count=2,
    )
    assert job.wait().status == "Completed", job.failure
    assert sorted(line.text for line in job.logs() if line.rank is not None) == ["a", "ac ac ac", "b", "b b b"]
    assert not [path for path in home.job(job.name).path.rglob("*") if path.is_fifo()]
    assert of_home() == []
