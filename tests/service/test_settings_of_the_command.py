"""`herringbone serve` refuses what it could not use, by the names of its own options."""

import pytest

pytest.importorskip("starlette")

from herringbone.cli.__main__ import main


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
