"""Herringbone's wheel, packed without a build tool."""

import io
import zipfile

import pytest

from herringbone.images.wheel import find_containers, pack, pack_herringbone


@pytest.fixture(scope="module")
def packed():
    name, content = pack_herringbone()
    assert name.startswith("herringbone-")
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        # The native core is binary; all other files are text.
        return {entry: wheel.read(entry).decode(errors="replace") for entry in wheel.namelist()}


def test_the_same_sources_give_the_same_bytes():
    assert pack_herringbone() == pack_herringbone()
    assert pack({"a": b"1", "b": b"2"}, "RECORD") == pack({"b": b"2", "a": b"1"}, "RECORD")


def test_the_wheel_holds_packages_shims_and_dockerfiles(packed):
    for file in (
        "herringbone_contract/constants.py",
        "herringbone/images/trials/contents.py",
        "herringbone/_containers/pytorch/Dockerfile",
        "herringbone_entry/supervisor/running.py",
        "herringbone_parallel/torch/model_parallel/step.py",
        "herringbone_parallel/reduce/native/core.c",
        "herringbone_parallel/_shim/smdistributed/modelparallel/torch/__init__.py",
        "herringbone_parallel/_shim_horovod/horovod/tensorflow/__init__.py",
        "herringbone_contract/py.typed",
    ):
        assert file in packed, file
    assert not [name for name in packed if name.endswith(".pyc")]


def test_the_wheel_declares_the_commands(packed):
    (entry_points,) = (
        text for name, text in packed.items() if name.endswith("entry_points.txt") and name.count("/") == 1
    )
    assert "train = herringbone_entry.__main__:main" in entry_points


def test_the_record_lists_every_file(packed):
    (record,) = (text for name, text in packed.items() if name.endswith("/RECORD"))
    assert {line.rsplit(",", 2)[0] for line in record.splitlines()} == set(packed)


def test_the_dockerfiles_are_found():
    assert (find_containers() / "tensorflow" / "Dockerfile").is_file()
