"""The packed code: equal content gives equal bytes."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from herringbone.code.archive import pack_code
from herringbone.code.files import check_source, copy_source
from herringbone.plan.source import SourceCode
from herringbone_contract.errors import InputError

NO_HOME = Path("/nonexistent")
FILES = {"train.py": "print(1)\n", "lib/b.py": "b", "lib/a.py": "a"}


def checkout(folder: Path, *, order: int, umask: int, time: int) -> SourceCode:
    """Write the same files in another order, with another umask and time."""
    for name in list(FILES)[::order]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FILES[name])
        path.chmod(0o777 & ~umask if name == "train.py" else 0o666 & ~umask)
        os.utime(path, (time, time))
    return SourceCode(entry_point="train.py", folder=str(folder), whole_folder=True)


def test_equal_code_makes_equal_archives(tmp_path):
    first = pack_code(checkout(tmp_path / "a", order=1, umask=0o022, time=10**9), tmp_path / "x", exclude=NO_HOME)
    second = pack_code(checkout(tmp_path / "b", order=-1, umask=0o077, time=10**8), tmp_path / "y", exclude=NO_HOME)
    assert first.digest == second.digest
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.path.name == f"{first.digest}.tar.gz"
    # Stores know the content by this name, so it must not change from one version to the next.
    assert first.digest == "565ead5a3362b1f4fc6ee98f3dbb50fc068fabab389144760a693157a9d22264"


def test_the_archive_holds_no_owner_and_no_time(tmp_path):
    source = checkout(tmp_path / "a", order=1, umask=0o027, time=10**9)
    packed = pack_code(source, tmp_path, exclude=NO_HOME)
    with tarfile.open(packed.path) as archive:
        members = [(info.name, info.mode, info.uid, info.gid, info.uname, info.mtime) for info in archive]
    assert members == [
        ("lib/a.py", 0o644, 0, 0, "", 0),
        ("lib/b.py", 0o644, 0, 0, "", 0),
        ("train.py", 0o755, 0, 0, "", 0),
    ]
    # gzip's header: the flags, 0 without a file name, and the time.
    assert packed.path.read_bytes()[3:8] == b"\0\0\0\0\0"


@pytest.mark.parametrize("change", ["content", "name", "mode"])
def test_changed_code_has_another_name(tmp_path, change):
    source = checkout(tmp_path / "a", order=1, umask=0o022, time=10**9)
    before = pack_code(source, tmp_path, exclude=NO_HOME)
    path = tmp_path / "a/lib/a.py"
    if change == "content":
        path.write_text("c")
    elif change == "name":
        path.rename(tmp_path / "a/lib/c.py")
    else:
        path.chmod(0o755)
    assert pack_code(source, tmp_path, exclude=NO_HOME).digest != before.digest


def test_packing_and_copying_take_the_same_files(tmp_path):
    """All backends select files by one rule."""
    source = checkout(tmp_path / "a", order=1, umask=0o022, time=10**9)
    (tmp_path / "a/.gitignore").write_text("b.py\n")
    packed = pack_code(source, tmp_path / "packed", exclude=NO_HOME)
    check_source(SourceCode(entry_point="train.py", archive=str(packed.path)), exclude=NO_HOME)
    with tarfile.open(packed.path) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    copy_source(source, tmp_path / "copied", exclude=NO_HOME)
    assert contents(tmp_path / "unpacked") == contents(tmp_path / "copied")
    assert list(contents(tmp_path / "copied")) == [".gitignore", "lib/a.py", "train.py"]


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_the_size_is_shown(tmp_path):
    packed = pack_code(checkout(tmp_path / "a", order=1, umask=0o022, time=0), tmp_path, exclude=NO_HOME)
    assert (packed.num_files, packed.content_bytes) == (3, 11)
    assert packed.size_bytes == packed.path.stat().st_size
    assert str(packed) == f"code {packed.digest[:12]}: 3 files, 11 bytes, {packed.size_bytes} bytes packed"


def test_a_failed_archive_leaves_no_file(tmp_path):
    source = checkout(tmp_path / "a", order=1, umask=0o022, time=0)
    (tmp_path / "a/.env").write_text("TOKEN=1")
    with pytest.raises(InputError, match=r"\.env would travel"):
        pack_code(source, tmp_path / "packed", exclude=NO_HOME)
    assert not (tmp_path / "packed").exists()
