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


FRAMEWORK = """
import json, os, sys, tarfile
from sagemaker_training import environment, errors, files, functions, modules

with tarfile.open("code.tar.gz", "w:gz") as archive:
    archive.add("mine.py")
answers = {"from an archive": modules.import_module(os.path.abspath("code.tar.gz"), "mine").value()}
answers["unpacked to"] = [name for name in os.listdir(environment.code_dir) if name != "__pycache__"]
os.mkdir("other")
for text, name in (("def value(): return 'second'", "mine"), ("1 / 0", "broken")):
    files.write_file(f"other/{name}.py", text)
answers["imported again"] = modules.import_module("other", "mine").value()
try:
    modules.import_module("other", "broken")
except errors.ImportModuleError as error:
    answers["broken"] = str(error)
files.write_file("other/requirements.txt", "invalid/module")
try:
    modules.import_module("other", "mine")
except errors.InstallRequirementsError as error:
    answers["requirements"] = error.return_code
os.environ["CA_REPOSITORY_ARN"] = "arn:aws:codeartifact:us-east-1:1:repository/a/b"
try:
    modules.install("other")
except Exception as error:
    answers["refused"] = type(error).__name__
answers["given"] = environment.Environment(hyperparameters={"epochs": 7, "name": "a"}).hyperparameters
files.write_failure_file("first")
files.write_failure_file("second")
answers["failure"] = files.read_file(os.path.join(environment.output_dir, "failure"))
print(json.dumps(answers))
"""


def test_a_framework_imports_code_from_archives_and_folders(run, contract, tmp_path):
    for path in (contract / "code").iterdir():
        path.unlink()
    (tmp_path / "mine.py").write_text("def value(): return 'first'")
    done = run(FRAMEWORK, env={"SAGEMAKER_BASE_DIR": str(contract), "PIP_NO_INDEX": "1"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "from an archive": "first",
        "unpacked to": ["mine.py"],
        "imported again": "second",
        "broken": "broken: ZeroDivisionError: division by zero",
        "requirements": 1,
        "refused": "UnsupportedError",
        "given": {"epochs": 7, "name": "a"},
        "failure": "first",
    }


GROUPS = """
import json, os
import sagemaker_containers
from sagemaker_containers.beta.framework import content_types, encoders, entry_point, env, worker
from sagemaker_training.environment import Environment

found = env.TrainingEnv()
answers = {name: found[name] for name in ("distribution_hosts", "is_modelparallel_enabled", "current_instance_group")}
answers["by name"] = found.distribution_hosts
answers["same"] = dict(sagemaker_containers.training_env()) == dict(Environment())
answers["type"] = bool(content_types.JSON)
for name, call in (("encode", encoders.encode), ("response", worker.Response)):
    try:
        call(b"")
    except Exception as error:
        answers[name] = f"{type(error).__name__}: {error}"
print(json.dumps(answers))
"""


@pytest.mark.parametrize(
    ("names", "named", "hosts"),
    [
        ("a", None, ["h1", "h2"]),
        ("ab", None, []),
        ("ab", ["b"], ["h3", "h4"]),
        ("ab", ["b", "a"], ["h3", "h4", "h1", "h2"]),
    ],
)
def test_the_toolkits_older_name_trains_and_refuses_to_host(run, contract, names, named, hosts):
    members = {"a": ["h1", "h2"], "b": ["h3", "h4"]}
    groups = [{"instance_group_name": name, "instance_type": "x", "hosts": members[name]} for name in names]
    resources = {
        "current_host": "h1",
        "current_group_name": "a",
        "hosts": [host for name in names for host in members[name]],
        "instance_groups": groups,
    }
    config = contract / "input" / "config"
    (config / "resourceconfig.json").write_text(json.dumps(resources))
    settings = {"sagemaker_program": '"good.py"', "mp_parameters": '{"partitions": 2}' if named else "{}"}
    if named:
        settings["sagemaker_distribution_instance_groups"] = json.dumps(named)
    (config / "hyperparameters.json").write_text(json.dumps(settings))
    done = run(GROUPS, env={"SAGEMAKER_BASE_DIR": str(contract)})
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    refusal = "UnsupportedError: sagemaker_containers.beta.framework.{}: Herringbone trains, and hosts nothing; "
    assert answers.pop("encode").startswith(refusal.format("encoders.encode"))
    assert answers.pop("response").startswith(refusal.format("worker.Response"))
    assert answers == {
        "distribution_hosts": hosts,
        "by name": hosts,
        "is_modelparallel_enabled": bool(named),
        "current_instance_group": "a",
        "same": True,
        "type": True,
    }


TRAIN = "from sagemaker_training import trainer; trainer.train()"


@pytest.mark.parametrize(("program", "code", "file"), [("good.py", 0, "success"), ("ends.py", 7, "failure")])
def test_the_trainer_runs_the_program_of_a_host(run, contract, program, code, file):
    (contract / "code" / "ends.py").write_text("raise SystemExit(7)")
    config = contract / "input" / "config" / "hyperparameters.json"
    config.write_text(json.dumps({"epochs": 3, "sagemaker_program": program}))
    done = run(TRAIN, env={"SAGEMAKER_BASE_DIR": str(contract)})
    assert done.returncode == code, done.stdout + done.stderr
    assert (contract / "output" / file).exists()
    assert not (contract / "output" / ("failure" if file == "success" else "success")).exists()


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        ("pass", 0, None),
        ("raise OSError(errno.ENOENT, 'gone')", 2, "Framework Error:"),
        ("raise OSError(1 << 20, 'odd')", 1, "Framework Error:"),
        ("raise errors.ClientError('mine')", 1, "mine"),
    ],
)
def test_the_trainer_calls_the_function_of_a_framework(run, contract, tmp_path, body, code, reason):
    text = f"import errno\nfrom sagemaker_training import errors\ndef main():\n    {body}\n"
    (tmp_path / "site" / "framework.py").write_text(text)
    done = run(TRAIN, env={"SAGEMAKER_BASE_DIR": str(contract), "SAGEMAKER_TRAINING_MODULE": "framework:main"})
    assert done.returncode == code, done.stdout + done.stderr
    failure = contract / "output" / "failure"
    assert failure.exists() is (reason is not None)
    if reason is not None:
        assert failure.read_text().startswith(reason)


SYNC = """
import json, os, sys, time
from sagemaker_training import environment, files, intermediate_output
from sagemaker_training.intermediate_output import IntermediateSync

sent, folder = {}, environment.output_intermediate_dir
assert intermediate_output.start_sync("", None) is None
os.makedirs(folder + "/deep")
assert intermediate_output.start_sync("s3://bucket/out", None) is None
failures = ["once"]

def upload(path, name):
    if name == "stubborn" and failures:
        failures.pop()
        raise ConnectionError("no network")
    sent.setdefault(name, []).append(files.read_file(path))

sync = IntermediateSync(folder, upload, lambda: os.path.exists(os.path.join(environment.output_dir, "success")))
sync.start()
for name in ("removed", "deep/changed", "stubborn"):
    files.write_file(f"{folder}/{name}", "1")
os.symlink("/etc/hostname", folder + "/link")
for _ in range(600):
    if len(sent) == 3:
        break
    time.sleep(0.1)
os.remove(folder + "/removed")
files.write_file(folder + "/deep/changed", "22")
files.write_success_file()
sync.join()
print(json.dumps(sent))
"""


def test_intermediate_output_is_sent_when_it_has_stopped_changing(run, contract):
    done = run(SYNC, env={"SAGEMAKER_BASE_DIR": str(contract)})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "removed": ["1"],
        "deep/changed": ["1", "22"],
        "stubborn": ["1"],
    }


def test_a_setting_of_the_runner_is_refused(run, contract):
    text = "from sagemaker_training import entry_point, runner; "
    text += "entry_point.run('.', 'good.py', [], runner_type=runner.RunnerType.MPI)"
    done = run(text, env={"SAGEMAKER_BASE_DIR": str(contract)})
    assert done.returncode == 1
    assert "UnsupportedError" in done.stderr
    assert "`distribution`" in done.stderr


@pytest.mark.parametrize("package", ["sagemaker_training", "sagemaker_containers", "sagemaker_xgboost_container"])
def test_it_refuses_to_be_imported_next_to_the_real_toolkit(run, tmp_path, package):
    name, real = package.replace("_", "-"), tmp_path / "site" / f"{package}-5.1.4.dist-info"
    real.mkdir()
    (real / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 5.1.4\n")
    done = run(f"import {package}")
    assert done.returncode != 0
    assert f"{name} 5.1.4 and herringbone-sagemaker are both installed" in done.stderr


MATRIX = """
import json
from sagemaker_xgboost_container import distributed, encoder
from sagemaker_xgboost_container.data_utils import get_dmatrix, read_rows

csv, csv_labels, weights = read_rows("csv", "csv", weighted=True)
sparse, labels, none = read_rows("train.libsvm", "libsvm")
refusals = []
for call in (
    lambda: read_rows("bad", "csv"),
    lambda: get_dmatrix("csv", "application/json"),
    lambda: get_dmatrix("csv", "csv", is_pipe=True),
    lambda: distributed.rabit_run(print, {}, True, ["a", "b"], "a"),
    lambda: encoder.csv_to_dmatrix("1,2"),
):
    try:
        call()
    except Exception as error:
        refusals.append(f"{type(error).__name__}: {error}"[:60])
print(json.dumps({
    "csv": [csv.tolist(), csv_labels.tolist(), weights.tolist()],
    "libsvm": [sparse.toarray().tolist(), labels, none],
    "empty": [get_dmatrix("absent", "csv"), get_dmatrix("", "text/libsvm; charset=utf-8")],
    "refusals": refusals,
}))
"""


def test_a_script_of_awss_xgboost_image_reads_its_channels(run, tmp_path):
    files = {"csv/a.csv": "1,0.5,2,3\n", "csv/deep/b.csv": "0,1,4,5\n", "csv/.hidden": "x", "bad/a.csv": "1,two\n"}
    for name, text in {**files, "train.libsvm": "1 0:2 2:3.5\n\n-1 1:4 # one\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    done = run(MATRIX)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers["csv"] == [[[2.0, 3.0], [4.0, 5.0]], [1.0, 0.0], [0.5, 1.0]]
    assert answers["libsvm"] == [[[2.0, 0.0, 3.5], [0.0, 4.0, 0.0]], [1.0, -1.0], None]
    assert answers["empty"] == [None, None]
    assert answers["refusals"] == [
        "InputError: get_dmatrix: bad: a row that is no csv: could no",
        "UnsupportedError: get_dmatrix: application/json: files of cs",
        "UnsupportedError: get_dmatrix: is_pipe, combine_train_val: f",
        "UnsupportedError: sagemaker_xgboost_container.distributed.ra",
        "UnsupportedError: sagemaker_xgboost_container.encoder.csv_to",
    ]
