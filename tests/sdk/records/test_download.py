"""The download of a job's results: complete or not at all, and nothing outside of its folder."""

import io
import json
import os
import subprocess
import sys
import tarfile

import pytest

from herringbone import Estimator, TrainingJob
from herringbone.records.download import download, write_logs
from herringbone.records.index import JobIndex, JobRecord
from herringbone.records.logs import parse_line
from herringbone_contract.errors import ArchiveError, InputError, OptionError


def packed(path, *members, cut=None):
    """Write a tar.gz of (name, content) pairs and `TarInfo` members; `cut` truncates it."""
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    if cut:
        path.write_bytes(path.read_bytes()[:cut])
    return path


def member_of(name, type_, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = type_, link
    return info


def test_files_folders_and_inner_links_arrive(tmp_path):
    archive = packed(
        tmp_path / "model.tar.gz",
        member_of("./", tarfile.DIRTYPE),
        ("./weights/a.bin", b"123"),
        member_of("latest", tarfile.SYMTYPE, "weights/a.bin"),
    )
    folder = download("model", lambda folder: archive, tmp_path / "new" / "model")
    assert (folder / "latest").read_bytes() == b"123"
    assert os.listdir(folder.parent) == ["model"]


def test_an_unpacked_model_is_copied(tmp_path):
    def fetch(folder):
        (folder / "out").mkdir()
        (folder / "out" / "a.bin").write_bytes(b"1")
        return folder / "out"

    assert (download("model", fetch, tmp_path / "model") / "a.bin").read_bytes() == b"1"


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (("../evil", b""), "would land outside"),
        (("/evil", b""), "would land outside"),
        (member_of("a", tarfile.SYMTYPE, "../.."), "a link to ../.., outside"),
        (member_of("a", tarfile.LNKTYPE, "../evil"), "a link to ../evil, outside"),
        (member_of("a", tarfile.FIFOTYPE), "not a file, a folder or a link"),
    ],
)
def test_a_malicious_archive_leaves_nothing(tmp_path, member, why):
    archive = packed(tmp_path / "model.tar.gz", ("good", b"1"), member)
    with pytest.raises(ArchiveError, match=why):
        download("model", lambda folder: archive, tmp_path / "out" / "model")
    assert os.listdir(tmp_path / "out") == []
    assert not (tmp_path / "out" / "evil").exists()


def test_a_chain_of_links_that_leads_outside_is_not_followed(tmp_path):
    members = (member_of("a", tarfile.SYMTYPE, "."), member_of("a/b", tarfile.SYMTYPE, ".."), ("b/evil", b""))
    with pytest.raises(ArchiveError, match="outside"):
        download("model", lambda folder: packed(tmp_path / "m.tar.gz", *members), tmp_path / "out" / "model")


def test_a_damaged_archive_and_an_interrupted_fetch_leave_nothing(tmp_path):
    damaged = packed(tmp_path / "m.tar.gz", ("a", os.urandom(9_000)), cut=5_000)
    with pytest.raises(ArchiveError, match=r"model m\.tar\.gz is damaged or incomplete"):
        download("model", lambda folder: damaged, tmp_path / "out" / "model")

    def interrupted(folder):
        (folder / "model.tar.gz").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download("model", interrupted, tmp_path / "out" / "model")
    assert os.listdir(tmp_path / "out") == []


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "empty").mkdir()
    archive = packed(tmp_path / "m.tar.gz", ("a", b"1"))
    for name in ("full", "file", "link"):
        with pytest.raises(InputError, match=f"{name} already exists"):
            download("model", lambda folder: archive, tmp_path / name)
    assert os.listdir(download("model", lambda folder: archive, tmp_path / "empty")) == ["a"]


RESULTS = """
import os, pathlib, sys
checkpoints = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"])
(checkpoints / "last.pt").write_text("step 3")
(checkpoints / "newest").symlink_to("last.pt")
(checkpoints / "away").symlink_to("/etc")
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "plot").write_text("p")
print("loss=0.5")
if sys.argv[1:] == ["--save", "yes"]:
    pathlib.Path(os.environ["SM_MODEL_DIR"], "weights").write_text("1")
"""


@pytest.mark.e2e
def test_each_part_of_a_jobs_results(script, home, tmp_path, capsys):
    """With the real supervisor: two jobs, and all that their rows, folders and descriptions say."""
    script(RESULTS)
    for words in (["init"], ["add", "train.py"], ["-c", "user.name=me", "-c", "user.email=me", "commit", "-m", "x"]):
        subprocess.run(["git", *words], check=True, capture_output=True)
    metrics = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]
    kept = f"file://{tmp_path}/kept"
    estimator = Estimator(
        "train.py", instance_type="local_process", metric_definitions=metrics, hyperparameters={"save": "yes"}
    )
    job = estimator.fit(job_name="a", logs=False)
    assert (job.download_model(tmp_path / "model") / "weights").read_text() == "1"
    assert (job.download("output", tmp_path / "output") / "plot").read_text() == "p"
    assert job.output_data == f"file://{home.path}/jobs/a/output/output.tar.gz"
    folder = job.download("checkpoints", tmp_path / "checkpoints")
    assert (folder / "newest").read_text() == "step 3"
    assert sorted(os.listdir(folder)) == ["last.pt", "newest"]
    assert "away of algo-1 is left out" in capsys.readouterr().err
    (log,) = job.download("logs", tmp_path / "logs").iterdir()
    assert log.read_text().splitlines() == home.job("a").log("algo-1").read_text().splitlines()
    with pytest.raises(OptionError, match="no part 'plots'; the parts are model, output, checkpoints, logs"):
        job.download("plots", tmp_path / "plots")
    members = job.describe()
    assert members["FinalMetricDataList"][0]["Value"] == 0.5
    versions = members["Herringbone"]["Versions"]
    assert versions["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert "herringbone" in versions
    assert (len(members["Herringbone"]["Code"]["Commit"]), members["Herringbone"]["Code"]["Dirty"]) == (40, False)
    # A job without a model, whose checkpoints are in a folder of the user's.
    unsaved = Estimator("train.py", instance_type="local_process", checkpoint_s3_uri=kept).fit(job_name="b", logs=False)
    assert (unsaved.status, unsaved.model_data) == ("Completed", None)
    with pytest.raises(InputError, match="job b is Completed, and its script saved no model in SM_MODEL_DIR"):
        unsaved.download_model(tmp_path / "none")
    assert unsaved.describe()["CheckpointConfig"]["S3Uri"] == kept
    assert (unsaved.download("checkpoints", tmp_path / "theirs") / "last.pt").exists()
    assert job.remove().size > 0
    assert unsaved.remove().error == ""
    assert (os.listdir(home.path / "jobs"), len(os.listdir(tmp_path / "kept"))) == ([], 3)


def test_checkpoints_of_several_hosts_come_together_unless_they_differ(home, tmp_path):
    home.make()
    plan = {"hosts": [{"name": "algo-1"}, {"name": "algo-2"}, {"name": "algo-3"}], "options": {}}
    row = JobRecord(name="a", backend="local_process", plan=json.dumps(plan), created=0.0, status="Stopped")
    JobIndex(home.index).add(row)
    job = TrainingJob.attach("a")
    for part, why in (("checkpoints", "no checkpoint into SM_CHECKPOINT_DIR"), ("output", "nothing into SM_OUTPUT")):
        with pytest.raises(InputError, match=f"job a is Stopped.*{why}"):
            job.download(part, tmp_path / "none")
    for host in ("algo-1", "algo-2"):
        folder = home.job("a").host(host) / "checkpoints"
        folder.mkdir(parents=True)
        (folder / "rank.pt").write_text(host)
    (home.job("a").host("algo-3") / "checkpoints").mkdir(parents=True)
    folder = job.download("checkpoints", tmp_path / "all")
    assert sorted(os.listdir(folder)) == ["algo-1", "algo-2"]
    assert (folder / "algo-2/rank.pt").read_text() == "algo-2"
    (home.job("a").checkpoints("algo-1") / "rank.pt").write_text("algo-2")
    for host in ("algo-1", "algo-2"):
        (home.job("a").checkpoints(host) / "step-1").mkdir()
        (home.job("a").checkpoints(host) / "step-1" / host).write_text(host)
    folder = job.download("checkpoints", tmp_path / "together")
    assert sorted(path.name for path in folder.rglob("*")) == ["algo-1", "algo-2", "rank.pt", "step-1"]
    assert not (tmp_path / "none").exists()


def test_logs_have_a_file_per_host(tmp_path):
    lines = [
        parse_line(text, "algo-1")
        for text in (
            b"2026-11-21T11:44:37.123456Z [algo-1:0] a",
            b"2026-11-21T11:44:38.000000Z [algo-2] b",
            b"2026-11-21T11:44:38.000000Z [..] not a host",
            b"2026-11-21T11:44:38.000000Z [INFO] not a host either",
        )
    ]
    logs = write_logs(lines, ["algo-1", "algo-2"], tmp_path)
    assert sorted(path.name for path in logs.iterdir()) == ["algo-1.log", "algo-2.log", "others.log"]
    assert (logs / "algo-2.log").read_text() == "2026-11-21T11:44:38.000000Z [algo-2] b\n"
