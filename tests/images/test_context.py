"""The files for a build: equal content gives an equal context at any time and for any user."""

import io
import os
import tarfile

from herringbone.images.context import Context


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
