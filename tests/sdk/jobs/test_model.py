"""The download of a packed model: complete or not at all, and nothing outside of its folder."""

import io
import os
import tarfile

import pytest

from herringbone import Estimator, TrainingJob
from herringbone.jobs.model import download_model
from herringbone_contract.errors import ArchiveError, InputError


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
    folder = download_model(lambda folder: archive, tmp_path / "new" / "model")
    assert (folder / "latest").read_bytes() == b"123"
    assert os.listdir(folder.parent) == ["model"]


def test_an_unpacked_model_is_copied(tmp_path):
    def fetch(folder):
        (folder / "out").mkdir()
        (folder / "out" / "a.bin").write_bytes(b"1")
        return folder / "out"

    assert (download_model(fetch, tmp_path / "model") / "a.bin").read_bytes() == b"1"


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
        download_model(lambda folder: archive, tmp_path / "out" / "model")
    assert os.listdir(tmp_path / "out") == []
    assert not (tmp_path / "out" / "evil").exists()


def test_a_chain_of_links_that_leads_outside_is_not_followed(tmp_path):
    members = (member_of("a", tarfile.SYMTYPE, "."), member_of("a/b", tarfile.SYMTYPE, ".."), ("b/evil", b""))
    with pytest.raises(ArchiveError, match="outside"):
        download_model(lambda folder: packed(tmp_path / "m.tar.gz", *members), tmp_path / "out" / "model")


def test_a_damaged_archive_and_an_interrupted_fetch_leave_nothing(tmp_path):
    damaged = packed(tmp_path / "m.tar.gz", ("a", os.urandom(9_000)), cut=5_000)
    with pytest.raises(ArchiveError, match=r"model m\.tar\.gz is damaged or incomplete"):
        download_model(lambda folder: damaged, tmp_path / "out" / "model")

    def interrupted(folder):
        (folder / "model.tar.gz").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_model(interrupted, tmp_path / "out" / "model")
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
            download_model(lambda folder: archive, tmp_path / name)
    assert os.listdir(download_model(lambda folder: archive, tmp_path / "empty")) == ["a"]


def test_a_jobs_model_is_unpacked_into_the_users_folder(backend, script, tmp_path):
    script("raise SystemExit(1)")
    job = TrainingJob.submit(Estimator("train.py", instance_type="local_process").plan(), backend).wait()
    with pytest.raises(InputError, match="is Failed and has no model"):
        job.download_model(tmp_path / "early")
    script("import os; open(os.environ['SM_MODEL_DIR'] + '/weights', 'w').write('1')")
    job = TrainingJob.submit(Estimator("train.py", instance_type="local_process").plan(), backend).wait()
    assert (job.download_model(tmp_path / "model") / "weights").read_text() == "1"
    assert not (tmp_path / "early").exists()
