"""`sagemaker_training`: what scripts import of AWS's training toolkit."""

from __future__ import annotations

import json

import pytest

SCRIPT = """
import json
from sagemaker_training import entry_point, environment, errors, functions, params

env = environment.Environment()
def train(channel_input_dirs, hyperparameters): ...
answers = {
    "model_dir": env.model_dir == environment.model_dir,
    "hyperparameters": env.hyperparameters,
    "arguments": env.to_cmd_args(),
    "variable": env.to_env_vars()["SM_HP_EPOCHS"],
    "matching": sorted(functions.matching_args(train, env)),
    "program": environment.read_hyperparameters()[params.USER_PROGRAM_PARAM],
}
entry_point.run(env.module_dir, "good.py", env.to_cmd_args(), env.to_env_vars())
try:
    entry_point.run(env.module_dir, "bad.py", [], capture_error=True)
except errors.ExecuteUserScriptError as error:
    answers["error"] = str(error)
print(json.dumps(answers))
"""


@pytest.fixture
def contract(tmp_path):
    """Return the base folder of a host, with its files and code."""
    config = tmp_path / "ml" / "input" / "config"
    config.mkdir(parents=True)
    code = tmp_path / "ml" / "code"
    code.mkdir()
    (code / "good.py").write_text("import os, sys; print('good', sys.argv[1:], os.environ['SM_HP_EPOCHS'])")
    (code / "bad.py").write_text("1 / 0")
    settings = {"epochs": "3", "sagemaker_program": '"good.py"', "sagemaker_submit_directory": json.dumps(str(code))}
    (config / "hyperparameters.json").write_text(json.dumps(settings))
    (config / "resourceconfig.json").write_text(json.dumps({"current_host": "algo-1", "hosts": ["algo-1"]}))
    return tmp_path / "ml"


def test_a_script_reads_its_job_and_runs_another_one(run, contract):
    done = run(SCRIPT, env={"SAGEMAKER_BASE_DIR": str(contract)})
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert "ZeroDivisionError" in answers.pop("error")
    assert answers == {
        "model_dir": True,
        "hyperparameters": {"epochs": 3},
        "arguments": ["--epochs", "3"],
        "variable": "3",
        "matching": ["channel_input_dirs", "hyperparameters"],
        "program": "good.py",
    }
    assert "good ['--epochs', '3'] 3" in done.stdout


def test_it_refuses_to_be_imported_next_to_the_real_toolkit(run, tmp_path):
    real = tmp_path / "site" / "sagemaker_training-5.1.4.dist-info"
    real.mkdir()
    (real / "METADATA").write_text("Metadata-Version: 2.1\nName: sagemaker-training\nVersion: 5.1.4\n")
    done = run("import sagemaker_training")
    assert done.returncode != 0
    assert "sagemaker-training 5.1.4 and herringbone-sagemaker are both installed" in done.stderr
