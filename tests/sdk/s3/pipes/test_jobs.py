"""Jobs of `local_process` in Pipe mode, from files of this machine and from a mock of S3."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import herringbone
from herringbone.plan.inputs import ShuffleConfig
from herringbone.records.home import Home
from herringbone_contract.errors import InputError, UnsupportedError

SCRIPT = """
import json, os, pathlib, sys
channel = os.environ["SM_CHANNEL_TRAINING"]
epochs = []
for epoch in range(int(os.environ.get("EPOCHS", "2"))):
    with open(f"{channel}_{epoch}", "rb") as fifo:
        epochs.append(fifo.read().decode("latin-1"))
config = json.loads(pathlib.Path(os.environ["SM_INPUT_CONFIG_DIR"], "inputdataconfig.json").read_text())
host = os.environ["SM_CURRENT_HOST"]
pathlib.Path(os.environ["SM_MODEL_DIR"], f"{host}.json").write_text(json.dumps([epochs, config["training"]]))
marker = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"] if "SM_CHECKPOINT_DIR" in os.environ else ".", "tried")
if os.environ.get("FAIL_ONCE") and not marker.exists():
    marker.write_text("")
    sys.exit("now it fails")
"""


def estimator(**options: Any) -> herringbone.Estimator:
    Path("train.py").write_text(SCRIPT)
    return herringbone.Estimator("train.py", instance_type="local_process", input_mode="Pipe", **options)


def results(job: Any) -> dict[str, Any]:
    with tarfile.open(job.model_data.removeprefix("file://")) as model:
        return {name: json.loads(model.extractfile(name).read()) for name in model.getnames()}  # type: ignore[union-attr]


def left_fifos(home: Home, job: Any) -> list[Path]:
    return [path for path in home.job(job.name).path.rglob("*") if path.is_fifo()]


def test_hosts_read_shares_of_local_files_epoch_by_epoch(home: Home) -> None:
    Path("data").mkdir()
    for name in "abc":
        Path("data", name).write_text(name)
    job = estimator(instance_count=2).fit(
        herringbone.TrainingInput("data", distribution="ShardedByS3Key", record_wrapping="None"), logs=False
    )
    hosts = results(job)
    assert [epochs for epochs, _ in hosts.values()] == [["ac", "ac"], ["b", "b"]]
    assert hosts["algo-1.json"][1]["TrainingInputMode"] == "Pipe"
    assert left_fifos(home, job) == []


def test_objects_are_read_from_the_bucket_and_from_no_disk(home: Home, s3: Any) -> None:
    for name in ("a", "b", "c", "d"):
        s3.put_object(Bucket="mine", Key=f"data/{name}", Body=name.encode())
    s3.put_object(Bucket="mine", Key="data/large", Body=b"x" * (5 << 20))
    source = herringbone.TrainingInput("s3://mine/data/", shuffle_config=ShuffleConfig(seed=5))
    job = estimator(environment={"EPOCHS": "3"}).fit(source, logs=False)
    epochs = results(job)["algo-1.json"][0]
    assert {"".join(sorted(epoch)) for epoch in epochs} == {"abcd" + "x" * (5 << 20)}
    assert len(set(epochs)) > 1
    assert not list((home.cache / "s3").glob("*/*"))
    # No part of the credentials is in any file of the job.
    for path in home.path.rglob("*"):
        if path.is_file():
            assert b"mock-secret-of-this-test" not in path.read_bytes(), path


def test_an_augmented_manifest_is_sent_attribute_by_attribute(home: Home, s3: Any) -> None:
    s3.put_object(Bucket="mine", Key="1.jpg", Body=b"one!")
    s3.put_object(Bucket="mine", Key="2.jpg", Body=b"two!")
    lines = [{"label": number, "source-ref": f"s3://mine/{number}.jpg", "more": None} for number in (1, 2)]
    s3.put_object(Bucket="mine", Key="manifest", Body="\n".join(map(json.dumps, lines)).encode())
    source = herringbone.TrainingInput(
        "s3://mine/manifest",
        s3_data_type="AugmentedManifestFile",
        attribute_names=("source-ref", "label"),
        record_wrapping="RecordIO",
    )
    job = estimator(environment={"EPOCHS": "1"}).fit(source, logs=False)
    (epoch,), config = results(job)["algo-1.json"]
    assert epoch.encode("latin-1") == b"".join(
        b"\x0a\x23\xd7\xce" + len(part).to_bytes(4, "little") + part.ljust(4, b"\0")
        for part in (b"one!", b"1", b"two!", b"2")
    )
    assert config["RecordWrapperType"] == "RecordIO"


def test_an_attempt_begins_with_the_first_epoch_again(home: Home) -> None:
    Path("data").write_text("d")
    job = estimator(
        max_retry_attempts=1,
        environment={"FAIL_ONCE": "1"},
        checkpoint_s3_uri="kept",
        log_policies={"now it fails": "restart"},
    ).fit("data", logs=False)
    assert job.status == "Completed"
    assert results(job)["algo-1.json"][0] == ["d", "d"]
    assert left_fifos(home, job) == []


def test_a_job_without_its_data_fails_and_says_why(home: Home, s3: Any) -> None:
    s3.put_object(Bucket="mine", Key="data/a", Body=b"a")
    s3.put_object(Bucket="mine", Key="manifest", Body=b'{"x-ref": "s3://mine/data/a"}\n{"x-ref": "s3://mine/gone"}')
    source = herringbone.TrainingInput(
        "s3://mine/manifest", s3_data_type="AugmentedManifestFile", attribute_names=("x-ref",)
    )
    job = estimator().fit(source, wait=False)
    job.wait()
    assert job.status == "Failed"
    assert "channel 'training': s3://mine/gone: there is no such object" in str(job.failure).replace(
        "channel 'training': channel", "channel"
    )
    assert left_fifos(home, job) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"s3_data_type": "AugmentedManifestFile"}, "needs attribute_names"),
        ({"attribute_names": ("a",)}, "attribute_names need s3_data_type='AugmentedManifestFile'"),
        ({"input_mode": "File", "compression": "Gzip"}, "compression='Gzip' is for Pipe mode"),
        ({"input_mode": "File", "record_wrapping": "RecordIO"}, "record_wrapping='RecordIO' is for Pipe mode"),
        ({"input_mode": "File", "s3_data_type": "AugmentedManifestFile"}, "is read in Pipe mode"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(home: Home, source: dict[str, Any], message: str) -> None:
    Path("data").write_text("d")
    with pytest.raises(UnsupportedError, match=message):
        estimator().plan(herringbone.TrainingInput("data", **source))


def test_a_manifest_and_names_are_checked_at_plan(home: Home) -> None:
    Path("data").write_text('{"a": 1}\n{"b": 2}')
    source = herringbone.TrainingInput("data", s3_data_type="AugmentedManifestFile", attribute_names=("a",))
    with pytest.raises(InputError, match="line 2: it has no attribute 'a'"):
        estimator().plan(source)
    with pytest.raises(UnsupportedError, match="its FIFO has the name of channel training_0"):
        estimator().plan({"training": "data", "training_0": "data"})
