"""The user's code: located, checked and copied."""

import io
import tarfile
from pathlib import Path

import pytest

from herringbone.code.files import check_source, copy_source
from herringbone.plan.source import SourceCode, find_source
from herringbone_contract.errors import ArchiveError, InputError, UnsupportedError

HERE = Path("/home/me")
NO_HOME = Path("/nonexistent")


def pack(path: Path, members: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize(
    ("entry_point", "source_dir", "source"),
    [
        ("train.py", None, SourceCode(entry_point="train.py", folder="/home/me")),
        ("src/train.py", None, SourceCode(entry_point="train.py", folder="/home/me/src")),
        ("train.py", "src", SourceCode(entry_point="train.py", folder="/home/me/src", whole_folder=True)),
        ("./a/../b/t.py", "/src", SourceCode(entry_point="b/t.py", folder="/src", whole_folder=True)),
        ("train.py", "s3://b/code.tar.gz", SourceCode(entry_point="train.py", archive="s3://b/code.tar.gz")),
        ("train.py", "file:///c/code.tar.gz", SourceCode(entry_point="train.py", archive="/c/code.tar.gz")),
    ],
)
def test_source_is_found(entry_point, source_dir, source):
    assert find_source(entry_point, source_dir, [], base=HERE) == source


def test_an_entry_point_stays_inside_its_folder():
    with pytest.raises(InputError, match="must be a path inside source_dir"):
        find_source("../train.py", "src", [], base=HERE)


def test_code_in_a_bucket_is_an_archive_that_is_not_checked():
    source = find_source("train.py", "s3://b/code.tar.gz", [], base=HERE)
    assert (source.remote, source.address) == (True, "s3://b/code.tar.gz")
    check_source(source, exclude=HERE)
    with pytest.raises(UnsupportedError, match=r"source_dir: s3://b/code is no \.tar\.gz; pack the code"):
        find_source("train.py", "s3://b/code", [], base=HERE)
    with pytest.raises(UnsupportedError, match="source_dir: 'https://x/y' is not on this machine"):
        find_source("train.py", "https://x/y", [], base=HERE)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (SourceCode(entry_point="train.py", folder="gone"), "entry_point: gone/train.py: no such file"),
        (SourceCode(entry_point="t.py", folder="gone", whole_folder=True), "source_dir: gone: no such folder"),
        (SourceCode(entry_point="repo/image:1", folder="."), "to name an image, write image_uri"),
        (SourceCode(entry_point="t.py", folder=".", dependencies=("lib",)), "dependencies: lib: no such file"),
        (SourceCode(entry_point="t.py", archive="gone.tar.gz"), "source_dir: gone.tar.gz: no such file"),
    ],
)
def test_missing_files_are_named(source, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        check_source(source, exclude=NO_HOME)
    assert message in str(caught.value)


def test_an_archive_is_checked_before_anything_starts(tmp_path):
    good = pack(tmp_path / "good.tar.gz", {"./train.py": "print(1)"})
    check_source(SourceCode(entry_point="train.py", archive=str(good)), exclude=NO_HOME)
    with pytest.raises(InputError, match=r"has no member 'other.py'"):
        check_source(SourceCode(entry_point="other.py", archive=str(good)), exclude=NO_HOME)
    for name in ("../evil.py", "/etc/evil", "a/../../evil"):
        with pytest.raises(ArchiveError, match="would land outside of the code folder"):
            check_source(
                SourceCode(entry_point="x", archive=str(pack(tmp_path / "evil.tar.gz", {name: ""}))), exclude=NO_HOME
            )
    good.write_bytes(good.read_bytes()[:60])
    with pytest.raises(ArchiveError, match=r"is damaged or incomplete"):
        check_source(SourceCode(entry_point="train.py", archive=str(good)), exclude=NO_HOME)


def test_a_folder_is_copied_without_git_and_caches(tmp_path):
    source = tmp_path / "src"
    for name in ("train.py", "lib/a.py", "data.csv", ".git/HEAD", "lib/__pycache__/a.pyc", "jobs/x"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra/e.py").write_text("")
    (tmp_path / "one.py").write_text("")
    code = SourceCode(
        entry_point="train.py",
        folder=str(source),
        whole_folder=True,
        dependencies=(str(tmp_path / "extra"), str(tmp_path / "one.py")),
    )
    copy_source(code, tmp_path / "code", exclude=source / "jobs")
    copied = [path for path in (tmp_path / "code").rglob("*") if path.is_file()]
    names = sorted(path.relative_to(tmp_path / "code").as_posix() for path in copied)
    assert names == ["data.csv", "extra/e.py", "lib/a.py", "one.py", "train.py"]


def test_a_lone_script_is_copied_alone(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "secret.txt").write_text("")
    copy_source(SourceCode(entry_point="train.py", folder=str(tmp_path)), tmp_path / "code", exclude=tmp_path)
    assert [path.name for path in (tmp_path / "code").iterdir()] == ["train.py"]
