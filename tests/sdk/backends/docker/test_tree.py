"""The files of a container: mounted, copied to a remote engine, and fetched from there."""

import io
import json
import os
import shutil
import tarfile
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.plans import plan_of

from herringbone.backends.docker.tree import fetched_of, fill_host, mounts_of
from herringbone.backends.docker.tree_archive import write_tar
from herringbone.backends.process.tree import fill_host as fill_process
from herringbone.controller.containers.files import fetch
from herringbone.plan.inputs import TrainingInput
from herringbone.plan.request import make_request
from herringbone.plan.source import find_source
from herringbone.records.home import JobFolder
from herringbone_contract.errors import ArchiveError


@pytest.fixture
def job(tmp_path):
    """The folder of a job whose files are in `tmp_path`."""
    for name, text in {"src/train.py": "pass", "data/a.csv": "a", "data/b.csv": "b", "one.csv": "one"}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    folder = JobFolder(tmp_path / "jobs/digits-1")
    folder.path.mkdir(parents=True)
    return folder


def plan(base, inputs=None, *, count=1, **options):
    hosts = {} if count is None else {"instance_type": "local", "instance_count": count}
    code = {"entry_point": "train.py", "source_dir": "src", "hyperparameters": {"epochs": 3}}
    return plan_of(make_request("PyTorch", {**code, **hosts, **options}), base, inputs=inputs)


def filled(tmp_path, job, inputs=None, *, count=1, **options):
    job_plan = plan(tmp_path, inputs, count=count, **options)
    for host in job_plan.hosts:
        fill_host(job_plan, host, job, interface="eth0", exclude=tmp_path / "jobs")
    return job_plan


def mounted(job_plan, job, host=0):
    return {
        mount.target: (os.path.relpath(mount.source, job_plan.folder), mount.read_only)
        for mount in mounts_of(job_plan, job_plan.hosts[host], job)
    }


def test_the_mounts_of_a_container(tmp_path, job):
    kept = {"checkpoint_s3_uri": "file://kept", "tensorboard_output_config": {"s3_output_path": "tb"}}
    job_plan = filled(tmp_path, job, {"training": "data", "test": "one.csv"}, **kept)
    assert mounted(job_plan, job) == {
        "/opt/ml": ("jobs/digits-1/hosts/algo-1/ml", False),
        "/opt/ml/shared": ("jobs/digits-1/shared", False),
        "/opt/ml/checkpoints": ("kept", False),
        "/opt/ml/output/tensorboard": ("tb", False),
        "/opt/ml/input/data/training": ("data", True),
        "/opt/ml/input/data/test/one.csv": ("one.csv", True),
    }
    base = job.host("algo-1")
    assert (base / "code/train.py").read_text() == "pass"
    config = base / "input/config"
    assert json.loads((config / "hyperparameters.json").read_text())["sagemaker_submit_directory"] == '"/opt/ml/code"'
    assert json.loads((config / "resourceconfig.json").read_text())["network_interface_name"] == "eth0"
    assert json.loads((config / "checkpointconfig.json").read_text())["LocalPath"] == "/opt/ml/checkpoints"
    # The mount points must exist, because the engine would create them, owned by root.
    assert (base / "output/tensorboard").is_dir()
    assert sorted(path.name for path in (base / "input/data").rglob("*")) == ["one.csv", "test", "training"]


def test_all_hosts_have_one_folder_of_checkpoints(tmp_path, job):
    for fill in (fill_host, fill_process):
        job_plan = plan(tmp_path, count=2)
        for host in job_plan.hosts:
            fill(job_plan, host, job, interface="eth0", exclude=tmp_path / "jobs")
        if fill is fill_host:
            folders = [mounted(job_plan, job, host)["/opt/ml/checkpoints"][0] for host in range(2)]
            assert folders == ["jobs/digits-1/hosts/algo-1/ml/checkpoints"] * 2
        else:
            (job.checkpoints("algo-1") / "last.pt").write_text("weights")
            assert (job.checkpoints("algo-2") / "last.pt").read_text() == "weights"
        shutil.rmtree(job.path / "hosts")
    # On another machine, the first host's folder is not there.
    fill_process(job_plan, job_plan.hosts[1], job, interface="eth0", exclude=tmp_path / "jobs")
    assert not job.checkpoints("algo-2").is_symlink()


def test_an_image_with_a_program_of_its_own_keeps_its_code(tmp_path, job):
    bare = msgspec.structs.replace(filled(tmp_path, job), source=None)
    tree = "jobs/digits-1/hosts/algo-1/ml"
    parts = {f"/opt/ml/{part}": (f"{tree}/{part}", False) for part in ("input", "model", "output", "checkpoints")}
    assert mounted(bare, job) == {**parts, "/opt/ml/shared": ("jobs/digits-1/shared", False)}
    assert all((tmp_path / path).is_dir() for path, _ in parts.values())
    options = msgspec.structs.replace(bare.options, checkpoint_s3_uri="file://kept")
    kept = msgspec.structs.replace(bare, options=options)
    # The engine refuses two mounts of one place.
    assert [mount.target for mount in mounts_of(kept, kept.hosts[0], job)].count("/opt/ml/checkpoints") == 1
    assert mounted(kept, job)["/opt/ml/checkpoints"] == ("kept", False)


def test_each_of_several_hosts_has_a_folder_for_tensorboard(tmp_path, job):
    job_plan = filled(tmp_path, job, count=2, tensorboard_output_config={"s3_output_path": "tb"})
    assert [mounted(job_plan, job, host)["/opt/ml/output/tensorboard"] for host in (0, 1)] == [
        ("tb/algo-1", False),
        ("tb/algo-2", False),
    ]
    assert sorted(path.name for path in (tmp_path / "tb").iterdir()) == ["algo-1", "algo-2"]


def test_hosts_that_share_a_channel_have_links_to_their_part(tmp_path, job):
    job_plan = filled(tmp_path, job, TrainingInput("data", "ShardedByS3Key"), count=2)
    assert mounted(job_plan, job, host=1)["/opt/herringbone-data/training"] == ("data", True)
    for host, file in {"algo-1": "a.csv", "algo-2": "b.csv"}.items():
        (link,) = (job.host(host) / "input/data/training").iterdir()
        assert (link.name, os.readlink(link)) == (file, f"/opt/herringbone-data/training/{file}")


def test_a_single_file_that_is_sharded_goes_to_the_first_host(tmp_path, job):
    job_plan = filled(tmp_path, job, TrainingInput("one.csv", "ShardedByS3Key"), count=2)
    assert "/opt/ml/input/data/training/one.csv" in mounted(job_plan, job, host=0)
    assert "/opt/ml/input/data/training/one.csv" not in mounted(job_plan, job, host=1)
    assert list((job.host("algo-2") / "input/data/training").iterdir()) == []


def test_each_group_has_its_own_type_in_the_resource_config(tmp_path, job):
    groups = [
        {"instance_group_name": "gpu", "instance_type": "local_gpu", "instance_count": 1},
        {"instance_group_name": "cpu", "instance_type": "local", "instance_count": 1},
    ]
    filled(tmp_path, job, count=None, instance_groups=groups)
    config = json.loads((job.host("algo-2") / "input/config/resourceconfig.json").read_text())
    assert config["instance_groups"] == [
        {"instance_group_name": "gpu", "instance_type": "local_gpu", "hosts": ["algo-1"]},
        {"instance_group_name": "cpu", "instance_type": "local", "hosts": ["algo-2"]},
    ]
    assert (config["current_group_name"], config["current_instance_type"]) == ("cpu", "local")


def test_an_archive_of_code_is_copied_into_the_tree(tmp_path, job):
    with tarfile.open(tmp_path / "code.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "src/train.py", "train.py")
    job_plan = plan(tmp_path)
    job_plan = msgspec.structs.replace(job_plan, source=find_source("train.py", "code.tar.gz", (), base=tmp_path))
    fill_host(job_plan, job_plan.hosts[0], job, interface="eth0", exclude=tmp_path / "jobs")
    base = job.host("algo-1")
    assert (base / "input/sourcedir.tar.gz").read_bytes() == (tmp_path / "code.tar.gz").read_bytes()
    written = json.loads((base / "input/config/hyperparameters.json").read_text())
    assert written["sagemaker_submit_directory"] == '"/opt/ml/input/sourcedir.tar.gz"'


def test_the_program_of_an_image_gets_the_users_hyperparameters_alone(tmp_path, job):
    job_plan = plan(tmp_path)
    steering = {
        name: value for name, value in job_plan.hyperparameters.items() if name.startswith("sagemaker_container")
    }
    encoded = {"epochs": "3", "name": '"run"', "sagemaker_job_name": '"digits-1"', **steering}
    job_plan = msgspec.structs.replace(job_plan, source=None, hyperparameters=encoded)
    fill_host(job_plan, job_plan.hosts[0], job, interface="eth0", exclude=tmp_path / "jobs")
    written = json.loads((job.host("algo-1") / "input/config/hyperparameters.json").read_text())
    assert written == {"epochs": "3", "name": "run"}


def test_the_files_that_are_copied_to_a_remote_engine(tmp_path, job):
    job_plan = filled(tmp_path, job, {"training": TrainingInput("data", "ShardedByS3Key"), "test": "one.csv"}, count=2)
    pieces = []
    write_tar(mounts_of(job_plan, job_plan.hosts[1], job), pieces.append, user=1000, group=100)
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        members = {member.name: member for member in archive.getmembers()}
        # The other host's part is not sent.
        assert sorted(name for name in members if name.endswith(".csv")) == [
            "opt/ml/input/data/test/one.csv",
            "opt/ml/input/data/training/b.csv",
        ]
        assert archive.extractfile("opt/ml/input/data/training/b.csv").read() == b"b"
        assert archive.extractfile("opt/ml/code/train.py").read() == b"pass"
    assert {(member.uid, member.gid) for member in members.values()} == {(1000, 100)}
    assert "opt" not in members


def test_a_link_in_a_folder_of_checkpoints_reads_no_file_of_this_machine(tmp_path, job):
    """`..` behind a channel's path sent any file, and a file with two names was lost."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "secret").write_text("of this machine")
    kept = tmp_path / "kept"
    (kept / "epochs").mkdir(parents=True)
    (kept / "epochs" / "5.pt").write_text("five")
    os.link(kept / "epochs" / "5.pt", kept / "last.pt")
    (kept / "out").symlink_to("/opt/herringbone-data/training/../host/secret")
    os.mkfifo(kept / "fifo")
    options = {"checkpoint_s3_uri": "file://kept"}
    job_plan = filled(tmp_path, job, {"training": TrainingInput("data", "ShardedByS3Key")}, count=2, **options)
    pieces = []
    write_tar(mounts_of(job_plan, job_plan.hosts[0], job), pieces.append, user=1, group=1)
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        below = "opt/ml/checkpoints/"
        members = {member.name.removeprefix(below): member for member in archive if member.name.startswith(below)}
        assert {name: member.type for name, member in members.items() if name in ("out", "last.pt", "fifo")} == {
            "out": tarfile.SYMTYPE,
            "last.pt": tarfile.REGTYPE,
        }
    assert b"of this machine" not in b"".join(pieces)


def test_the_folders_that_are_fetched_from_a_container(tmp_path, job):
    job_plan = plan(tmp_path, checkpoint_s3_uri="file://kept", tensorboard_output_config={"s3_output_path": "tb"})
    assert {
        inside: os.path.relpath(target, tmp_path)
        for inside, target in fetched_of(job_plan, job_plan.hosts[0], job).items()
    } == {
        "/opt/ml/model": "jobs/digits-1/hosts/algo-1/ml/model",
        "/opt/ml/output": "jobs/digits-1/hosts/algo-1/ml/output",
        "/opt/ml/shared": "jobs/digits-1/shared",
        "/opt/ml/checkpoints": "kept",
        "/opt/ml/output/tensorboard": "tb",
    }


def tar_of(*members):
    """Return a tar as the engine sends it for a folder `model`: (name, content), (name, "->", link) or (name, None)."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        folder = tarfile.TarInfo("model")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, *rest in members:
            info = tarfile.TarInfo(name)
            info.mode = 0
            if rest[0] == "->":
                info.type, info.linkname = tarfile.SYMTYPE, rest[1]
                archive.addfile(info)
            elif isinstance(rest[0], bytes):
                info.size = len(rest[0])
                archive.addfile(info, io.BytesIO(rest[0]))
            else:
                info.type = tarfile.FIFOTYPE
                archive.addfile(info)
    return content.getvalue()


class TarEngine:
    """An engine that sends one tar, as a socket does: in small pieces."""

    def __init__(self, tar):
        self.stream = io.BytesIO(tar)

    @contextmanager
    def download(self, container, path):
        yield self

    def read(self, size):
        return self.stream.read(min(size, 700))


def test_fetched_files_land_in_their_folder_and_nowhere_else(tmp_path):
    messages = []
    malicious = tar_of(
        ("model/weights", b"w" * 70_000),
        ("model/latest", "->", "weights"),
        ("model/../../evil", b"e"),
        ("model//tmp/evil", b"e"),
        ("model/whole", "->", "/opt/ml/model/weights"),
        ("model/out", "->", "/etc"),
        ("model/up", "->", "../.."),
        ("model/pipe", None),
    )
    fetch(TarEngine(malicious), "id", "/opt/ml/model", tmp_path / "into", messages.append)
    assert (tmp_path / "into/weights").read_bytes() == b"w" * 70_000
    assert os.readlink(tmp_path / "into/latest") == "weights"
    assert os.readlink(tmp_path / "into/whole") == "weights"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["into", "latest", "weights", "whole"]
    assert messages == [
        "../../evil is left out: it would land outside",
        "/tmp/evil is left out: it would land outside",
        "out is left out: it is a link to /etc, outside",
        "up is left out: it is a link to ../.., outside",
        "pipe is left out: it is not a file, a folder or a link",
    ]


def test_an_incomplete_download_is_an_error(tmp_path):
    """A cut between two members cannot be noticed from the members alone."""
    whole = tar_of(("model/a", b"a"), ("model/b", b"b"))
    cut = whole[: 512 + 2 * 512]
    with pytest.raises(ArchiveError, match="damaged or incomplete"):
        fetch(TarEngine(cut), "id", "/opt/ml/model", tmp_path / "into", print)
    with pytest.raises(ArchiveError, match="damaged or incomplete"):
        fetch(TarEngine(whole[: 512 + 512 + 100]), "id", "/opt/ml/model", tmp_path / "other", print)


def test_a_folder_of_the_user_is_not_emptied(tmp_path):
    (tmp_path / "kept").mkdir()
    Path(tmp_path, "kept/old").write_text("old")
    fetch(TarEngine(tar_of(("model/new", b"new"))), "id", "/opt/ml/model", tmp_path / "kept", print)
    assert sorted(os.listdir(tmp_path / "kept")) == ["new", "old"]


def test_folders_of_mode_file_have_layers(tmp_path, job):
    """A single file and other modes have none."""
    inputs = {"a": "data", "b": TrainingInput("data", input_mode="FastFile"), "c": "one.csv"}
    mounts = mounts_of(filled(tmp_path, job, inputs), plan(tmp_path, inputs).hosts[0], job)
    layers = {mount.target: mount.layer for mount in mounts if mount.layer is not None}
    assert layers == {"/opt/ml/input/data/a": str(job.path / "layers/algo-1/a")}
