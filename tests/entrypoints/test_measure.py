"""The command that measures a script: rank 0's environment, and no word that another user may not read."""

import json

import pytest

from herringbone_entry import measure


@pytest.fixture
def replaced(tmp_path, monkeypatch):
    """Returns what the process was replaced by: words and environment."""
    base = tmp_path / "ml"
    config = base / "input" / "config"
    config.mkdir(parents=True)
    (base / "code" / "scripts").mkdir(parents=True)
    (base / "code" / "scripts" / "train.py").write_text("")
    hosts = {"current_host": "algo-1", "hosts": ["algo-1", "algo-2"], "network_interface_name": "lo"}
    values = {"sagemaker_program": '"scripts/train.py"', "password": '"hunter2"', "epochs": "3"}
    (config / "resourceconfig.json").write_text(json.dumps(hosts))
    (config / "hyperparameters.json").write_text(json.dumps(values))
    (config / "inputdataconfig.json").write_text("{}")
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(base))
    calls, words = [], ["--ranks", "4", "--local-ranks", "2", "--gpus", "0", "--", "--output", "out.json"]
    with pytest.raises(SystemExit) as end:
        measure.main(words, lambda words, environment: calls.append((words, environment)) or 0)
    assert end.value.code == 0
    return calls[0]


def test_hyperparameters_are_in_the_environment_and_not_in_the_words(replaced):
    words, environment = replaced
    assert words[1:5] == ["-m", "herringbone_parallel.torch.measure", "--output", "out.json"]
    assert "hunter2" not in " ".join(words)
    variable = words[words.index("--arguments-in") + 1]
    assert json.loads(environment[variable]) == ["--epochs", "3", "--password", "hunter2"]
    assert words[-1].endswith("/code/scripts/train.py")
    assert (environment["WORLD_SIZE"], environment["LOCAL_WORLD_SIZE"], environment["SM_CURRENT_HOST"]) == (
        "4",
        "2",
        "algo-1",
    )


def test_the_code_is_on_the_path_of_the_script_and_not_of_the_measuring_program(replaced):
    words, environment = replaced
    code = words[-1].removesuffix("/scripts/train.py")
    assert words[words.index("--paths") + 1] == f"{code}/scripts:{code}"
    assert code not in environment["PYTHONPATH"].split(":")
