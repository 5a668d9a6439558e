"""List the files of a channel, and compute the digest that names them in S3."""

import pytest

from herringbone.backends.channel_files import read_data
from herringbone_contract.errors import InputError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "b.csv").write_text("1\n")
    (tmp_path / "data" / "deep" / "a.csv").write_text("22\n")
    return tmp_path / "data"


def test_names_sizes_and_one_digest(folder):
    data = read_data(folder, "training")
    assert [(file.name, file.num_bytes) for file in data.files] == [("b.csv", 2), ("deep/a.csv", 3)]
    assert data.num_bytes == 5
    # Uploaded objects lie below this digest, so a new version must compute the same one.
    assert data.digest == "9decf036bb0a1ba1c7879769f4e05431d7b0d267c1804dc3c39e2f6396f7ace5"


def test_the_digest_depends_on_names_and_contents(folder):
    before = read_data(folder, "training").digest
    (folder / "b.csv").rename(folder / "c.csv")
    renamed = read_data(folder, "training").digest
    (folder / "c.csv").write_text("2\n")
    assert len({before, renamed, read_data(folder, "training").digest}) == 3


def test_a_single_file_keeps_its_name(folder):
    assert [file.name for file in read_data(folder / "b.csv", "training").files] == ["b.csv"]


def test_links_inside_the_folder_are_followed_and_cycles_are_refused(folder):
    (folder / "again").symlink_to(folder / "deep")
    assert [file.name for file in read_data(folder, "a").files] == ["again/a.csv", "b.csv", "deep/a.csv"]
    (folder / "deep" / "round").symlink_to(folder)
    with pytest.raises(InputError, match=r"round is a link to .*, which contains the link"):
        read_data(folder, "a")


def test_ignore_rules_for_code_do_not_apply_to_data(folder):
    (folder / ".gitignore").write_text("*.csv\n")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("x")
    assert len(read_data(folder, "a").files) == 4


@pytest.mark.parametrize("name", ["x" * 200 + "/" + "y" * 200 + "/" + "z" * 200 + "/" + "w" * 210, "bad\udcff"])
def test_names_that_s3_refuses(folder, name):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with pytest.raises(InputError, match=r"the name is too long for S3|the name is not valid text"):
        read_data(folder, "a")
