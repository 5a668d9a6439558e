"""`herringbone serve` refuses what it could not use, by the names of its own options."""

from pathlib import Path

import pytest

pytest.importorskip("starlette")

from herringbone.cli.__main__ import main
from herringbone.serve.verb import _settings


def test_a_misspelt_backend_is_refused_by_the_name_of_the_option(capsys):
    assert main(["serve", "--backend", "local_proc"]) == 2
    message = capsys.readouterr().err
    assert "--backend 'local_proc': this release has no backend for it" in message
    assert "did you mean local_process?" in message
    assert "instance_type" not in message


def test_a_misspelt_backend_in_the_mapping_names_the_file_and_the_type(capsys, tmp_path):
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("instance_types:\n  ml.m5.large: {backend: local_proc}\n")
    assert main(["serve", "--backend", "local_process", "--mapping", str(mapping)]) == 2
    assert f"--mapping {mapping}: instance_types: ml.m5.large: backend 'local_proc'" in capsys.readouterr().err


def test_the_folder_of_buckets_is_written_as_addresses_are(tmp_path, monkeypatch):
    """With `..` in it no address would be below it, and no link would be found."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    options = {"backend": "local_process", "account": "000000000000", "regions": ("us-east-1",), "mapping": None}
    assert _settings(**options, buckets=Path("../b")).buckets == str(tmp_path / "b")


@pytest.mark.parametrize("of_type", [False, True])
def test_pods_do_not_see_the_folder_of_buckets(capsys, tmp_path, of_type):
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("instance_types:\n  ml.m5.large: {backend: 'k8s:team-a'}\n" if of_type else "{}\n")
    backend = "local_process" if of_type else "k8s:team-a"
    words = ["serve", "--backend", backend, "--mapping", str(mapping), "--buckets", str(tmp_path)]
    assert main(words) == 2
    assert f"--buckets {tmp_path}: pods of k8s: do not see this folder" in capsys.readouterr().err
