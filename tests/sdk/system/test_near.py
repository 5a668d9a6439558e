"""Hints for paths that do not exist."""

import pytest

from herringbone.system.near import alternatives


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("trian.py", "; did you mean {}/train.py?"),
        ("dta/train/x.txt", "; did you mean {}/data?"),
        ("data/zzz", "; {}/data has no files"),
        ("zzz", "; {} has a, b, c, data, e and 1 more"),
        ("train.py/zzz", "; did you mean {}/train.py?"),
    ],
)
def test_a_missing_path_has_a_hint(tmp_path, path, hint):
    for name in ("a", "b", "c", "e", "train.py"):
        (tmp_path / name).touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/.hidden").touch()
    assert alternatives(tmp_path / path) == hint.format(tmp_path)
