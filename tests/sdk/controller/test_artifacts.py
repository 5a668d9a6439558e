"""Packing: complete or not at all, and the same bytes for the same files."""

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from herringbone.controller.artifacts import HostFolder, pack_model
from herringbone.controller.artifacts import pack as pack_folders


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    folder.mkdir(exist_ok=True)
    return folder


def pack(folders, target, *, compress, say):
    return pack_folders(
        [HostFolder(host, path.parent, path.name) for host, path in folders], target, compress=compress, say=say
    )


def content(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read().decode() for member in archive}


@pytest.fixture
def messages():
    return []


def test_hosts_are_packed_together(tmp_path, messages):
    one = fill(tmp_path / "1", {"part-0.bin": "0", "config/a.json": "{}"})
    two = fill(tmp_path / "2", {"part-1.bin": "1", "config/a.json": "{}"})
    packed = pack([("algo-1", one), ("algo-2", two)], tmp_path / "out/model.tar.gz", compress=True, say=messages.append)
    assert content(packed) == {"config/a.json": "{}", "part-0.bin": "0", "part-1.bin": "1"}
    assert messages == []
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.tar.gz"]


def test_the_first_hosts_file_is_packed_and_the_other_is_reported(tmp_path, messages):
    one, two = fill(tmp_path / "1", {"model.bin": "one"}), fill(tmp_path / "2", {"model.bin": "two"})
    packed = pack([("algo-1", one), ("algo-2", two)], tmp_path / "m.tar.gz", compress=True, say=messages.append)
    assert content(packed) == {"model.bin": "one"}
    assert messages == ["model.bin of algo-2 is left out: algo-1 has a file of that name; write it under another"]


@pytest.mark.parametrize(("content", "smaller"), [(b"text " * 50_000, True), (os.urandom(250_000), False)])
def test_an_archive_is_compressed_when_that_saves_space(tmp_path, messages, content, smaller):
    folder = fill(tmp_path / "1", {"empty": "", "small": "x" * 1_000})
    (folder / "weights").write_bytes(content)
    packed = pack([("algo-1", folder)], tmp_path / "m.tar.gz", compress=True, say=messages.append)
    assert (packed.stat().st_size < 100_000) is smaller
    # Any reader of gzip reads it.
    subprocess.run(["gzip", "--test", packed], check=True)
    with tarfile.open(packed) as archive:
        assert archive.extractfile("weights").read() == content


def test_a_model_that_no_host_wrote_is_not_packed(tmp_path, messages):
    for host in ("1", "2"):
        (tmp_path / host / "model").mkdir(parents=True)
    bases = [("algo-1", tmp_path / "1"), ("algo-2", tmp_path / "2"), ("algo-3", tmp_path / "3")]
    assert pack_model(bases, tmp_path / "out", compress=True, say=messages.append) is None
    assert not (tmp_path / "out").exists()
    (tmp_path / "2/model/w").touch()
    assert pack_model(bases, tmp_path / "out", compress=True, say=messages.append) == tmp_path / "out/model.tar.gz"


def test_equal_files_make_equal_bytes(tmp_path, messages):
    for name, moment in (("1", 1_000), ("2", 2_000_000)):
        for path in fill(tmp_path / name, {"b": "x", "a": "y"}).iterdir():
            os.utime(path, (moment, moment))
        pack([("algo-1", tmp_path / name)], tmp_path / f"{name}.tar.gz", compress=True, say=messages.append)
    assert (tmp_path / "1.tar.gz").read_bytes() == (tmp_path / "2.tar.gz").read_bytes()


def test_an_empty_model_is_an_empty_archive(tmp_path, messages):
    assert (
        content(pack([("a", fill(tmp_path / "1", {}))], tmp_path / "m.tar.gz", compress=True, say=messages.append))
        == {}
    )


def test_links_inside_stay_links_and_all_others_are_named(tmp_path, messages):
    """Links were followed, so files of this machine came into the archive, and a link to a folder above had no end."""
    folder = fill(tmp_path / "model", {"epochs/5.pt": "x"})
    fill(tmp_path / "host", {"secret": "of this machine"})
    (folder / "out").symlink_to(tmp_path / "host/secret")
    (folder / "outs").symlink_to("../host")
    (folder / "gone").symlink_to("nowhere")
    (folder / "up").symlink_to(".")
    (folder / "epochs" / "up").symlink_to("..")
    (folder / "round").symlink_to("around")
    (folder / "around").symlink_to("round")
    (folder / "best.pt").symlink_to("/opt/ml/model/epochs/5.pt")
    (folder / "last.pt").symlink_to(folder / "epochs/5.pt")
    (folder / "epochs" / "same.pt").symlink_to("../last.pt")
    os.mkfifo(folder / "pipe\x1b[2J")
    packed = pack([("algo-1", folder)], tmp_path / "m.tar.gz", compress=True, say=messages.append)
    with tarfile.open(packed) as archive:
        assert {member.name: member.linkname for member in archive} == {
            "best.pt": "epochs/5.pt",
            "epochs/5.pt": "",
            "epochs/same.pt": "5.pt",
            "last.pt": "epochs/5.pt",
        }
    remedy = "outside the folder; write the file itself into the folder"
    assert [message.removeprefix("algo-1: ").replace(" of algo-1 is left out: ", ": ") for message in messages] == [
        "around: it is a link that leads back to itself",
        "epochs/up: it is a link to a folder above itself",
        "gone: it is a link to nothing",
        f"out: it is a link to {tmp_path}/host/secret, {remedy}",
        f"outs: it is a link to ../host, {remedy}",
        "pipe\\x1b[2J: it is a FIFO, and archives of results have files and links only",
        "round: it is a link that leads back to itself",
        "up: it is a link to a folder above itself",
    ]


def test_a_link_in_place_of_the_folder_is_refused_by_name(tmp_path, messages):
    fill(tmp_path / "host", {"secret": "of this machine"})
    (tmp_path / "model").symlink_to("host")
    with pytest.raises(OSError, match=r"it is a link: .*/model"):
        pack([("algo-1", tmp_path / "model")], tmp_path / "m.tar.gz", compress=True, say=messages.append)
    assert not (tmp_path / "m.tar.gz").exists()


def test_a_file_where_another_host_has_a_folder_is_left_out(tmp_path, messages):
    """The archive had members `a` and `a/b`, and no program could unpack it."""
    one, two = fill(tmp_path / "1", {"a": "file", "b/c": "x"}), fill(tmp_path / "2", {"a/b": "x", "b": "file"})
    packed = pack([("algo-1", one), ("algo-2", two)], tmp_path / "m.tar.gz", compress=True, say=messages.append)
    assert content(packed) == {"a": "file", "b/c": "x"}
    assert [message.split(" is ")[0] for message in messages] == ["a/b of algo-2", "b of algo-2"]


def test_without_compression_the_result_is_a_folder(tmp_path, messages):
    one = fill(tmp_path / "1", {"a/b": "x"})
    (one / "a/b").chmod(0o755)
    (one / "link").symlink_to("a/b")
    packed = pack([("algo-1", one)], tmp_path / "out/model", compress=False, say=messages.append)
    assert (packed / "a/b").read_text() == "x"
    assert os.readlink(packed / "link") == "a/b"
    assert (packed / "a/b").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"]


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A disk of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small disk needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("this system does not let the test mount a tmpfs")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("compress", [True, False])
def test_a_full_disk_leaves_nothing_incomplete(tmp_path, small_disk, compress, messages):
    one = fill(tmp_path / "1", {})
    (one / "weights").write_bytes(os.urandom(2 << 20))
    with pytest.raises(OSError, match="No space left on device"):
        pack([("algo-1", one)], small_disk / "out/model.tar.gz", compress=compress, say=messages.append)
    assert list((small_disk / "out").iterdir()) == []
    assert (one / "weights").stat().st_size == 2 << 20
