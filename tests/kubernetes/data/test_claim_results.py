"""Results in claims: brought here through commands of the reader pod, which run on this machine."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from herringbone.backends.kubernetes.data.claim_results import ClaimResults, RunningLogs
from herringbone.backends.kubernetes.data.packing import fetch_part, model_column, repack_results
from herringbone.records.description import describe_own_job
from herringbone.records.home import JobFolder
from herringbone.records.index import JobRecord
from herringbone_contract.errors import InputError, KubernetesError
from tests.kubernetes.data.local_api import LocalApi, LocalRun
from tests.kubernetes.data.test_reader import OWNER, RUNNING
from tests.kubernetes.planning import kubernetes_plan

RESULTS, CHECKPOINTS = "/herringbone/results", "/herringbone/checkpoints"
LOG = "2026-11-30T00:00:01Z 1 [algo-1:0] a\n2026-11-30T00:00:01Z 2 [algo-1:0] b\n"


@pytest.fixture
def claim(tmp_path) -> Path:
    folder = tmp_path / "claim"
    for host in ("algo-1", "algo-2"):
        for part in ("model", "output/data", "output/log/a-uid"):
            (folder / "hosts" / host / "ml" / part).mkdir(parents=True)
    return folder


@pytest.fixture
def api(claim, tmp_path) -> LocalApi:
    folders = {RESULTS: claim, CHECKPOINTS: tmp_path / "saved", "/opt/ml": claim / "hosts/algo-1/ml"}
    api = LocalApi(folders, lambda api, job: api.add_pod(job, **RUNNING))
    api.objects[OWNER] = {"metadata": {"name": "hb-digits", "uid": "a-uid", "labels": {}}}
    return api


def results_of(api, folder: Path, running=(), **options) -> ClaimResults:
    return ClaimResults(
        api, kubernetes_plan(folder, **options), RunningLogs(api, "team-a", lambda: dict(running), lambda: "a-uid")
    )


def record_of(folder: Path, status: str = "Completed", model: str | None = "pvc://x", **options) -> JobRecord:
    plan = kubernetes_plan(folder, **options)
    return JobRecord(
        name="digits",
        backend="kubernetes",
        plan=json.dumps(plan.to_dict()),
        created=0.0,
        status=status,
        secondary_status=status,
        model=model,
    )


def model_of_host(claim: Path, number: int) -> Path:
    return claim / f"hosts/algo-{number}/ml/model"


def test_the_models_of_all_hosts_become_one_folder(api, claim, tmp_path, capsys):
    model_of_host(claim, 1).joinpath("a.pt").write_bytes(b"one")
    model_of_host(claim, 2).joinpath("a.pt").write_bytes(b"other")
    model_of_host(claim, 2).joinpath("deep").mkdir()
    model_of_host(claim, 2).joinpath("deep/b.pt").write_bytes(b"two")
    (into := tmp_path / "into").mkdir()
    model = fetch_part(results_of(api, tmp_path), record_of(tmp_path), JobFolder(tmp_path / "job"), "model", into)
    files = {str(path.relative_to(model)): path.read_bytes() for path in model.rglob("*") if path.is_file()}
    assert files == {"a.pt": b"one", "deep/b.pt": b"two"}
    assert "a.pt of algo-2 is left out: algo-1 has a file of that name" in capsys.readouterr().err


def test_links_of_a_script_stay_inside(api, claim, tmp_path, capsys):
    model = model_of_host(claim, 1)
    (model / "a.pt").write_bytes(b"one")
    (model / "newest").symlink_to("/opt/ml/model/a.pt")
    (model / "secret").symlink_to("/etc/shadow")
    os.mkfifo(model / "pipe")
    (into := tmp_path / "into").mkdir()
    fetched = fetch_part(results_of(api, tmp_path), record_of(tmp_path), JobFolder(tmp_path / "job"), "model", into)
    assert sorted(path.name for path in fetched.iterdir()) == ["a.pt", "newest"]
    assert os.readlink(fetched / "newest") == "a.pt"
    errors = capsys.readouterr().err
    assert "secret in model of algo-1 is left out: it is a link to /etc/shadow, outside" in errors
    assert "pipe in model of algo-1 is left out" in errors


def test_repack_makes_the_archive_of_every_other_backend(api, claim, tmp_path):
    model_of_host(claim, 1).joinpath("a.pt").write_bytes(b"one")
    (claim / "hosts/algo-2/ml/output/data/plot").write_bytes(b"p")
    folder, record = JobFolder(tmp_path / "job"), record_of(tmp_path, "Failed", model=None)
    archive = repack_results(results_of(api, tmp_path), record, folder, print)
    with tarfile.open(archive) as packed:
        assert packed.getnames() == ["a.pt"]
    assert {path.name for path in folder.path.rglob("*")} == {"output", "model.tar.gz", "output.tar.gz"}
    # From now on it is fetched from here.
    api.commands.clear()
    assert fetch_part(results_of(api, tmp_path), record, folder, "model", tmp_path) == archive
    assert api.commands == []
    with pytest.raises(InputError, match="has its model already"):
        repack_results(results_of(api, tmp_path), record, folder, print)


def test_repack_leaves_the_files_plain_where_the_job_says_so(api, claim, tmp_path):
    model_of_host(claim, 1).joinpath("a.pt").write_bytes(b"one")
    folder = JobFolder(tmp_path / "job")
    record = record_of(tmp_path, "Failed", model=None, disable_output_compression=True)
    model = repack_results(results_of(api, tmp_path), record, folder, print)
    assert (model / "a.pt").read_bytes() == b"one"
    assert fetch_part(results_of(api, tmp_path), record, folder, "model", tmp_path) == model
    with pytest.raises(InputError, match="has its model already"):
        repack_results(results_of(api, tmp_path), record, folder, print)


@pytest.mark.parametrize(
    ("part", "status", "model", "message"),
    [
        ("model", "InProgress", None, "is InProgress and has no model: the model is packed when a job completes"),
        ("model", "Failed", None, "if its script wrote one, `herringbone repack digits` packs it"),
        ("model", "Completed", None, "left no model: no host has files in /opt/ml/model"),
        ("output", "InProgress", None, "has no output: it is complete at the job's end"),
        ("output", "Completed", None, "left no output: no host has files in /opt/ml/output/data"),
        ("checkpoints", "Completed", None, "has no checkpoint_s3_uri, so its checkpoints are gone with its pods"),
    ],
)
def test_what_is_not_there_is_named(api, tmp_path, part, status, model, message):
    (into := tmp_path / "into").mkdir()
    results, record = results_of(api, tmp_path), record_of(tmp_path, status, model)
    with pytest.raises(InputError, match=message):
        fetch_part(results, record, JobFolder(tmp_path / "job"), part, into)


def test_checkpoints_of_a_job_that_runs(api, tmp_path):
    (tmp_path / "saved/epoch-1").mkdir(parents=True)
    (tmp_path / "saved/epoch-1/rank-0.pt").write_bytes(b"c")
    (into := tmp_path / "into").mkdir()
    options = {"checkpoint_s3_uri": "pvc://results/saved"}
    results, record = results_of(api, tmp_path, **options), record_of(tmp_path, "InProgress", None, **options)
    fetched = fetch_part(results, record, JobFolder(tmp_path / "job"), "checkpoints", into)
    assert (fetched / "epoch-1/rank-0.pt").read_bytes() == b"c"


@pytest.mark.parametrize("running", [{}, {"algo-1": "pod-2"}])
def test_the_lines_of_a_copy(api, claim, tmp_path, running):
    (claim / "hosts/algo-1/ml/output/log/a-uid/pod-1.log").write_text(LOG + "2026-11")
    results = results_of(api, tmp_path, running)
    lines = LOG.encode().splitlines()
    # What has no end may be still being written.
    assert list(results.lines("pod-1", "algo-1", 1)) == lines
    assert list(results.lines("pod-1", "algo-1", 2)) == [lines[1]]
    assert list(results.lines("pod-9", "algo-1", 1)) == []
    assert api.made == (0 if running else 1)


@pytest.mark.parametrize(("end", "transient"), [("kill -9 $$", True), ("exit 1", False)])
def test_a_copy_that_was_not_read_to_its_end_is_no_short_copy(api, tmp_path, monkeypatch, end, transient):
    line = LOG.partition("\n")[0]
    monkeypatch.setattr(api, "stream", lambda *_, **__: LocalRun(["sh", "-c", f"echo '{line}'; {end}"], stdin=False))
    lines = results_of(api, tmp_path, {"algo-1": "pod-2"}).lines("pod-1", "algo-1", 1)
    assert next(lines) == line.encode()
    with pytest.raises(KubernetesError) as error:
        next(lines)
    assert error.value.transient is transient


def test_pods_that_have_left_a_copy(api, claim, tmp_path):
    for host, name in (("algo-1", "pod-1.log"), ("algo-2", "pod-2.log"), ("algo-2", "a b.log"), ("algo-2", "x\n.log")):
        (claim / f"hosts/{host}/ml/output/log/a-uid/{name}").write_text(LOG)
    (claim / "hosts/algo-9/ml/output/log/a-uid").mkdir(parents=True)
    (claim / "hosts/algo-9/ml/output/log/a-uid/pod-9.log").write_text(LOG)
    assert results_of(api, tmp_path).pods() == [("pod-1", "algo-1"), ("pod-2", "algo-2")]


def test_logs_of_an_earlier_job_of_the_same_name_are_not_this_ones(api, claim, tmp_path):
    (earlier := claim / "hosts/algo-1/ml/output/log/b-uid").mkdir()
    for folder in (earlier, earlier.parent):
        (folder / "pod-1.log").write_text(LOG)
    results = results_of(api, tmp_path)
    assert results.pods() == []
    assert list(results.lines("pod-1", "algo-1", 1)) == []


def test_a_link_or_a_fifo_in_the_place_of_a_copy_is_not_read(api, claim, tmp_path):
    folder = claim / "hosts/algo-1/ml/output/log/a-uid"
    (folder / "pod-1.log").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pod-2.log")
    results = results_of(api, tmp_path)
    assert [list(results.lines(pod, "algo-1", 1)) for pod in ("pod-1", "pod-2")] == [[], []]


@pytest.mark.parametrize(
    ("options", "output", "checkpoints"),
    [
        ({}, "pvc://results/jobs", None),
        ({"checkpoint_s3_uri": "pvc://results/saved"}, "pvc://results/jobs", "pvc://results/saved"),
        ({"output_path": "s3://mine/jobs", "checkpoint_s3_uri": "s3://mine/c"}, "s3://mine/jobs", "s3://mine/c"),
    ],
)
def test_a_description_names_the_places(tmp_path, options, output, checkpoints):
    described = describe_own_job(record_of(tmp_path, **options), JobFolder(tmp_path / "job"), {}, now=1.0)
    assert described["OutputDataConfig"]["S3OutputPath"] == output
    assert described.get("CheckpointConfig", {}).get("S3Uri") == checkpoints


@pytest.mark.parametrize(
    ("status", "message", "model"),
    [
        ("Completed", "model", {"model": "pvc://results/jobs/digits/hosts"}),
        ("Stopped", "model", {"model": "pvc://results/jobs/digits/hosts"}),
        ("Completed", "", {}),
        ("Failed", "model", {}),
        ("InProgress", "model", {}),
    ],
)
def test_a_job_has_a_model_where_a_host_says_so(tmp_path, status, message, model):
    pods = [{"status": {"containerStatuses": [{"state": {"terminated": {"message": message}}}]}}, {}]
    assert model_column(pods, {"status": status}, record_of(tmp_path, model=None)) == model
