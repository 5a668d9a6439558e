"""Jobs on machines that read channels in shares and from FIFOs, and whose checkpoints go to a bucket."""

from __future__ import annotations

import json
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from herringbone import TrainingInput, TrainingJob
from herringbone_contract.errors import HostError, InputError
from tests.aws_mock import mock_aws

from .conftest import members
from .machines import Machines

pytestmark = pytest.mark.ssh

SHARES = """
import json, os, pathlib
folder = pathlib.Path(os.environ["SM_CHANNEL_TRAINING"])
with open(os.environ["SM_CHANNEL_STREAM"] + "_0", "rb") as fifo:
    stream = fifo.read().decode()
seen = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
pathlib.Path(os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"]).write_text(json.dumps([seen, stream]))
"""

CHECKPOINTS = """
import os, pathlib
folder = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"] if "SM_CHECKPOINT_DIR" in os.environ
                      else os.environ["SAGEMAKER_BASE_DIR"] + "/checkpoints")
host = os.environ["SM_CURRENT_HOST"]
names = sorted(path.name for path in folder.iterdir())
pathlib.Path(os.environ["SM_MODEL_DIR"], host).write_text(" ".join(names))
(folder / f"{host}-{len(names)}.pt").write_text("weights")
(folder / f"{host}.tmp").write_text("half")
"""


def results(job: TrainingJob) -> dict[str, str]:
    with tarfile.open(str(job.model_data).removeprefix("file://")) as model:
        return {name: model.extractfile(name).read().decode() for name in model.getnames()}  # type: ignore[union-attr]


@pytest.fixture
def s3(machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A mock of S3 that the machines reach, too; they have no credentials of their own."""
    boto3 = pytest.importorskip("boto3")
    with mock_aws(tmp_path / "moto.log", machines.gateway) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mock")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mock-secret-of-this-test")
        urllib.request.urlopen(f"{address}/moto-api/reset", data=b"", timeout=60).close()  # noqa: S310 - our own server
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="mine")
        yield client


def test_each_machine_gets_its_share_alone(submit: Callable[..., TrainingJob], machines: Machines) -> None:
    for name in ("a", "b", "deep/c"):
        Path("data", name).parent.mkdir(parents=True, exist_ok=True)
        Path("data", name).write_text(name)
    shared = TrainingInput("data", distribution="ShardedByS3Key")
    stream = TrainingInput("data", distribution="ShardedByS3Key", input_mode="Pipe")
    job = submit(SHARES, {"training": shared, "stream": stream}, hosts=2).wait()
    assert job.status == "Completed", job.failure
    seen = {host: json.loads(text) for host, text in results(job).items()}
    assert seen["algo-1"] == [{"a": "a", "deep/c": "deep/c"}, "adeep/c"]
    assert seen["algo-2"] == [{"b": "b"}, "b"]
    for name in machines.names:
        # Also the data of other tests' jobs is there.
        stored = {path.name for path in machines.work(name).glob("data/*/**/*") if path.is_file()} & {"a", "b", "c"}
        assert stored in ({"a", "c"}, {"b"}, set()), name


def test_checkpoints_of_all_machines_go_to_a_bucket_and_come_back(
    submit: Callable[..., TrainingJob], machines: Machines, s3: Any
) -> None:
    def keys() -> list[str]:
        return [entry["Key"] for entry in s3.list_objects_v2(Bucket="mine").get("Contents", ())]

    first = submit(CHECKPOINTS, hosts=2, name="first", checkpoint_s3_uri="s3://mine/c").wait()
    assert first.status == "Completed", first.failure
    assert keys() == ["c/algo-1-0.pt", "c/algo-2-0.pt"]
    second = submit(CHECKPOINTS, hosts=1, name="second", checkpoint_s3_uri="s3://mine/c").wait()
    assert results(second) == {"algo-1": "algo-1-0.pt algo-2-0.pt"}
    assert "c/algo-1-2.pt" in keys()
    # The credentials are on no disk of a machine.
    for name in machines.names:
        for path in machines.work(name).rglob("*"):
            if path.is_file() and "environments" not in path.parts:
                assert b"mock-secret-of-this-test" not in path.read_bytes(), path


@pytest.mark.parametrize(("end", "said"), [("", ""), ("raise SystemExit(3)", "SystemExit")])
def test_results_that_could_not_be_fetched_are_fetched_again_by_name(submit, machines, transport, end, said):
    """The job named a folder of the machine, and no command had anything to do with it."""
    save = "import os; open(os.environ['SM_{}'] + '/w', 'w').write('1')\n"
    job = submit(save.format("MODEL_DIR") + save.format("OUTPUT_DATA_DIR") + end, hosts=1)
    rsync, transport._rsync = transport._rsync, ("false",)
    assert job.wait().status == "Failed"
    place = f"h-1:{machines.work('h-1')}/jobs/{job.name}, and `herringbone repack {job.name}` fetches and packs them"
    assert said in job.failure.render()
    assert place in (" ".join(line.text for line in job.logs()) if said else job.failure.render())
    with pytest.raises(HostError, match=r"h-1: .*could not be copied"):
        job.repack()
    with pytest.raises(InputError, match="was not fetched; fetch it first"):
        job.remove(keep_model=True)
    transport._rsync = rsync
    assert job.repack().name == "model.tar.gz"
    assert members(job.model_data) == ["w"]
    assert Path(job.output_data.removeprefix("file://")).exists()
