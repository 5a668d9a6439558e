"""The sdist and the wheel hold what users need, name no machine, and pass the check of the package index."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("herringbone_contract", "herringbone", "herringbone_entry", "herringbone_parallel")
# Folders and files of this tree that the sdist holds; hatchling adds PKG-INFO, and .gitignore, which it reads itself.
SDIST = {
    *("contract", "sdk", "entrypoints", "parallel", "containers", "docs"),
    *("hatch_build.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", ".gitignore"),
}
NOT_SOURCES = ("__pycache__", "_native.so")
# Oldest and newest Python: `requires-python`, and the newest that .ci/run tests.
PYTHONS = [f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 15)]


@pytest.fixture(scope="module")
def sdist(archives) -> dict[str, bytes]:
    with tarfile.open(archives.sdist) as archive:
        members = [member for member in archive if member.isfile()]
        return {member.name.partition("/")[2]: archive.extractfile(member).read() for member in members}


@pytest.fixture(scope="module")
def wheel(archives) -> dict[str, bytes]:
    with zipfile.ZipFile(archives.wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    # The shim of torch.sagemaker has metadata of its own, in a folder of the package.
    (name,) = (name for name in wheel if name.endswith(".dist-info/METADATA") and name.count("/") == 1)
    return Parser().parsestr(wheel[name].decode())


def test_both_pass_the_check_of_the_index(archives):
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *archives], check=True)


def test_the_sdist_holds_what_a_build_needs_and_nothing_else(sdist):
    assert {name.partition("/")[0] for name in sdist} == SDIST
    folders = [ROOT / name for name in SDIST if (ROOT / name).is_dir()]
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and not any(part in NOT_SOURCES for part in path.parts)
    }
    assert {name for name in sdist if "/" in name} == sources


def test_the_wheel_holds_types_core_shims_images_and_pages(wheel):
    for package in PACKAGES:
        assert f"{package}/py.typed" in wheel
    data = next(name for name in wheel if ".data/" in name).partition("/")[0]
    for name in (
        "herringbone_parallel/reduce/_native.so",
        "herringbone_parallel/reduce/native/core.c",
        "herringbone_parallel/_shim/smdistributed/modelparallel/torch/__init__.py",
        "herringbone_parallel/_shim_horovod/horovod/torch/__init__.py",
        "herringbone/_containers/pytorch/Dockerfile",
    ):
        assert name in wheel
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {f"{data}/data/share/doc/herringbone/{page}" for page in pages} <= set(wheel)
    tops = {name.partition("/")[0] for name in wheel}
    assert tops == {*PACKAGES, data, data.replace(".data", ".dist-info")}


def test_the_metadata_say_where_it_runs(metadata):
    classifiers = metadata.get_all("Classifier")
    assert [name for name in classifiers if re.search(r"3\.\d", name)] == PYTHONS
    assert metadata["Requires-Python"] == ">=3.10"
    assert {"Operating System :: POSIX :: Linux", "Typing :: Typed"} <= set(classifiers)
    assert metadata["License-Expression"] == "Apache-2.0"
    # The index refuses an upload that has both.
    assert not [name for name in classifiers if name.startswith("License ::")]
    for address in metadata.get_all("Project-URL") or ():
        assert re.fullmatch(r"[A-Z][\w ]*, https://\S+", address)


def test_no_archive_names_a_folder_of_this_machine(sdist, wheel, archives):
    named = (ROOT, Path.home(), archives.sdist.parent, Path(sys.prefix))
    # A folder such as /root or /herringbone may be the name of something else, too.
    folders = {str(path) for path in named if len(path.parts) > 2}
    for name, content in {**sdist, **wheel}.items():
        for folder in folders:
            assert folder.encode() not in content, (name, folder)
