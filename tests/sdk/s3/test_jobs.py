"""Jobs of `local_process` that read from a mock of S3 and write to it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

import herringbone
from herringbone.backends.registry import backend_named
from herringbone.backends.ssh.start.upload import digest_of
from herringbone.plan.inputs import ShuffleConfig
from herringbone.records.home import Home
from herringbone_contract.errors import InputError, OptionError, UnsupportedError

SCRIPT = """
import json, os, pathlib
folder = pathlib.Path(os.environ["SM_CHANNEL_TRAINING"])
seen = {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}
checkpoints = pathlib.Path(os.environ.get("SM_CHECKPOINT_DIR", "/opt/ml/checkpoints"))
earlier = sorted(path.name for path in checkpoints.iterdir()) if checkpoints.is_dir() else []
host = os.environ["SM_CURRENT_HOST"]
pathlib.Path(os.environ["SM_MODEL_DIR"], f"{host}.json").write_text(json.dumps([seen, earlier]))
if checkpoints.is_dir():
    (checkpoints / f"epoch-{len(earlier)}.pt").write_text("weights")
    (checkpoints / "half.pt.tmp").write_text("half")
if os.environ.get("FAIL"):
    raise SystemExit(3)
"""


def estimator(home: Home, **options: Any) -> herringbone.Estimator:
    Path("train.py").write_text(SCRIPT)
    return herringbone.Estimator(options.pop("entry_point", "train.py"), instance_type="local_process", **options)


def results(job: Any, s3: Any) -> dict[str, Any]:
    """Return what each host of a job wrote into the model in the bucket."""
    import json

    bucket, _, key = job.model_data.removeprefix("s3://").partition("/")
    with tarfile.open(fileobj=io.BytesIO(s3.get_object(Bucket=bucket, Key=key)["Body"].read())) as model:
        return {name: json.loads(model.extractfile(name).read()) for name in model.getnames()}  # type: ignore[union-attr]


def keys(s3: Any, prefix: str = "") -> list[str]:
    return [entry["Key"] for entry in s3.list_objects_v2(Bucket="mine", Prefix=prefix).get("Contents", ())]


def test_data_model_and_checkpoints_travel(home: Home, s3: Any) -> None:
    for name in ("a.csv", "b.csv", "deep/c.csv"):
        s3.put_object(Bucket="mine", Key=f"data/train/{name}", Body=name.encode())
    s3.put_object(Bucket="mine", Key="data/train/", Body=b"")
    settings = {
        "instance_count": 2,
        "output_path": "s3://mine/models",
        "checkpoint_s3_uri": "s3://mine/checkpoints/digits/",
    }
    inputs = {"training": herringbone.TrainingInput("s3://mine/data/train", distribution="ShardedByS3Key")}
    job = estimator(home, **settings).fit(inputs, logs=False)
    assert job.model_data == f"s3://mine/models/{job.name}/output/model.tar.gz"
    hosts = results(job, s3)
    assert hosts["algo-1.json"][0] == {"a.csv": "a.csv", "deep/c.csv": "deep/c.csv"}
    assert hosts["algo-2.json"][0] == {"b.csv": "b.csv"}
    assert "checkpoints/digits/epoch-0.pt" in keys(s3, "checkpoints/")
    assert not [key for key in keys(s3) if key.endswith(".tmp")]
    description = job.describe()
    assert description["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"] == "s3://mine/data/train"
    assert description["CheckpointConfig"]["S3Uri"] == "s3://mine/checkpoints/digits/"
    # No part of the credentials is in any file of the job.
    for path in home.path.rglob("*"):
        if path.is_file():
            assert b"mock-secret-of-this-test" not in path.read_bytes(), path

    again = estimator(home, **{**settings, "instance_count": 1}).fit(inputs, logs=False)
    seen, earlier = results(again, s3)["algo-1.json"]
    assert len(seen) == 3
    assert "epoch-0.pt" in earlier
    assert "half.pt.tmp" not in earlier
    # Machines of `ssh:` have received the same channel before.
    folders = [home.job(each.name).s3 / "inputs/training" for each in (job, again)]
    assert digest_of(folders[0], "training") == digest_of(folders[1], "training")


def test_a_failed_job_leaves_its_checkpoints_in_the_bucket(home: Home, s3: Any) -> None:
    s3.put_object(Bucket="mine", Key="one.csv", Body=b"1")
    job = estimator(home, checkpoint_s3_uri="s3://mine/c", environment={"FAIL": "1"}).fit(
        "s3://mine/one.csv", wait=False
    )
    job.wait()
    assert job.status == "Failed"
    assert keys(s3, "c/") == ["c/epoch-0.pt"]


SAVES = """
import os, pathlib, time, zipfile
folder = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"])
# The observer begins a second after the ranks.
time.sleep(1.5)
for step in range(STEPS, STEPS + 3):
    with zipfile.ZipFile(folder / f"step-{step}.pt", "w") as archive:
        archive.writestr("data.pkl", b"x")
    time.sleep(0.01)
"""


def test_the_bucket_keeps_what_the_job_keeps(home: Home, s3: Any) -> None:
    for first, left in ((1, ["step-2.pt", "step-3.pt"]), (4, ["step-2.pt", "step-3.pt", "step-5.pt", "step-6.pt"])):
        Path("saves.py").write_text(SAVES.replace("STEPS", str(first)))
        options = {"entry_point": "saves.py", "keep_checkpoints": {"last": 2}}
        job = estimator(home, checkpoint_s3_uri="s3://mine/c", **options).fit(logs=False)
        assert keys(s3, "c/") == [f"c/{name}" for name in left]
        assert [event["path"] for event in job.events() if event["kind"] == "removed"] == [f"step-{first}.pt"]


def test_a_host_without_an_object_is_refused_at_plan_and_before_the_hosts_start(home: Home, s3: Any) -> None:
    for name in ("", "a.csv", "b.csv"):
        s3.put_object(Bucket="mine", Key=f"data/few/{name}", Body=b"")
    inputs = herringbone.TrainingInput("s3://mine/data/few/", distribution="ShardedByS3Key")
    with pytest.raises(InputError, match=r"divides 2 files of s3://mine/data/few/ among 3 hosts, so 1 would"):
        estimator(home, instance_count=3).plan(inputs)
    plan = estimator(home, instance_count=2).plan(inputs)
    s3.delete_object(Bucket="mine", Key="data/few/a.csv")
    with pytest.raises(InputError, match="divides 1 file of"):
        herringbone.TrainingJob.submit(plan, backend_named("local_process"))
    listed = herringbone.TrainingInput("s3://mine/list", distribution="ShardedByS3Key", s3_data_type="ManifestFile")
    s3.put_object(Bucket="mine", Key="list", Body=b'[{"prefix": "s3://mine/data/few/"}, "b.csv", "b.csv"]')
    with pytest.raises(InputError, match="divides 1 file of s3://mine/list among 2 hosts"):
        estimator(home, instance_count=2).plan(listed)


def test_what_is_not_there_is_refused_at_plan(home: Home, s3: Any) -> None:
    s3.put_object(Bucket="mine", Key="bad/../x", Body=b"1")
    with pytest.raises(InputError, match=r"channel 'training'.*no bucket absent"):
        estimator(home).plan("s3://absent/data")
    with pytest.raises(InputError, match="no object has a key that begins so"):
        estimator(home).plan("s3://mine/absent")
    with pytest.raises(InputError, match="checkpoint_s3_uri: there is no bucket absent"):
        estimator(home, checkpoint_s3_uri="s3://absent/c").plan()
    with pytest.raises(InputError, match="has an empty part, "):
        estimator(home).plan("s3://mine/bad")
    shuffled = herringbone.TrainingInput("s3://mine/bad", shuffle_config=ShuffleConfig(1))
    with pytest.raises(UnsupportedError, match="shuffle_config is for Pipe mode"):
        estimator(home).plan(shuffled)
    assert not list(home.path.glob("jobs/*"))


def test_code_and_model_come_from_a_bucket_and_a_manifest_lists_data(home: Home, s3: Any) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo("train.py")
        member.size = len(SCRIPT)
        tar.addfile(member, io.BytesIO(SCRIPT.encode()))
    s3.put_object(Bucket="mine", Key="code/sourcedir.tar.gz", Body=archive.getvalue())
    s3.put_object(Bucket="mine", Key="model.tar.gz", Body=b"weights")
    s3.put_object(Bucket="mine", Key="data/x.csv", Body=b"x")
    s3.put_object(Bucket="mine", Key="manifest", Body=b'[{"prefix": "s3://mine/"}, "data/x.csv"]')
    job = estimator(home, source_dir="s3://mine/code/sourcedir.tar.gz", model_uri="s3://mine/model.tar.gz").fit(
        herringbone.TrainingInput("s3://mine/manifest", s3_data_type="ManifestFile", input_mode="FastFile"), logs=False
    )
    host = home.job(job.name).host("algo-1")
    assert (host / "input/data/training/data/x.csv").read_text() == "x"
    assert (host / "input/data/model/model.tar.gz").read_bytes() == b"weights"
    assert any("FastFile reads as File" in note for note in job.plan.notes)


def test_code_location_gets_a_copy_of_the_code_whose_address_scripts_read(home: Home, s3: Any) -> None:
    Path("says.py").write_text(
        "import os; open(os.environ['SM_MODEL_DIR'] + '/x', 'w').write(os.environ['SM_MODULE_DIR'])"
    )

    def says(**options: Any) -> tuple[str, str]:
        job = estimator(home, entry_point="says.py", **options).fit(logs=False)
        return job.name, (home.job(job.name).host("algo-1") / "model/x").read_text()

    name, address = says(code_location="s3://mine/code/")
    assert address == f"s3://mine/code/{name}/source/sourcedir.tar.gz"
    assert says(source_dir=address)[1] == address
    # As the documentation of the variable says: the job's copy, in which the script starts.
    name, folder = says()
    assert folder == str(home.job(name).host("algo-1") / "code")
    with pytest.raises(OptionError, match="code_location: file:///code: give an s3:// address"):
        estimator(home, code_location="file:///code").plan()
    with pytest.raises(InputError, match="code_location: there is no bucket absent"):
        estimator(home, code_location="s3://absent").plan()
