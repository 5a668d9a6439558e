"""The files for a build: equal content gives an equal context at any time and for any user."""

import io
import os
import tarfile

import pytest

from herringbone.images.bake import gather
from herringbone.images.context import Context
from herringbone_contract.errors import InputError


def written(context):
    into = io.BytesIO()
    context.write(into)
    return into.getvalue()


def test_a_file_counts_by_its_content_alone(tmp_path):
    path = tmp_path / "wheel"
    path.write_bytes(b"content")
    first = Context({"a": path}), written(Context({"a": path}))
    os.utime(path, (1, 1))
    path.chmod(0o600)
    assert written(first[0]) == first[1] == written(Context({"a": b"content"}))
    assert first[0].digest == Context({"a": b"content"}).digest


def test_names_count_as_well():
    assert len({Context(files).digest for files in ({"a": b"1"}, {"b": b"1"}, {"a": b"2"}, {"a": b"1", "b": b""})}) == 4


def test_all_files_arrive():
    with tarfile.open(fileobj=io.BytesIO(written(Context({"x/b": b"2", "a": b"1"})))) as archive:
        assert {entry.name: archive.extractfile(entry).read() for entry in archive} == {"a": b"1", "x/b": b"2"}


LINES = "numpy\n./lib[extra]; python_version > '3'\nwheels/a.whl\n-f ./more\n-r other.txt\ntorch\n"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_baked_requirements_bring_their_local_files(tmp_path, encoding):
    names = (
        "lib/pyproject.toml",
        "lib/src/m.py",
        "lib/build/x",
        "wheels/a.whl",
        "wheels/b.whl",
        "more/c.whl",
        "torch/x",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "requirements.txt").write_text(LINES, encoding=encoding)
    (tmp_path / "other.txt").touch()
    files = {name.partition("requirements/")[2] for name in gather(tmp_path / "requirements.txt").files}
    local = {"lib/pyproject.toml", "lib/src/m.py", "wheels/a.whl", "more/c.whl"}
    assert files == {"requirements.txt", "other.txt", "wheels/README", *local}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-e ./lib", "an image keeps no folder that you could edit"),
        ("../lib", "requirements to bake must be in"),
        ("file://{}/lib", "requirements to bake must be in"),
        ("./link", "requirements to bake must be in"),
    ],
)
def test_local_requirements_that_cannot_be_baked_are_refused(tmp_path, line, message):
    for folder in ("lib", "code/lib"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "setup.py").touch()
    (tmp_path / "code" / "link").symlink_to(tmp_path / "lib")
    path = tmp_path / "code" / "requirements.txt"
    path.write_text(line.format(tmp_path))
    with pytest.raises(InputError, match=message):
        gather(path)
