"""Every verb with an unknown name, in an install without extras: an exit code and a message, and no traceback."""

import json
import os
import subprocess
import sys

import pytest

from herringbone.cli.__main__ import _VERBS
from herringbone.records.index import JobIndex, JobRecord

# Runs commands in a Python that has no package of an extra; prints a list of [command, exit code, standard error].
PROGRAM = """
import contextlib, importlib.machinery, io, json, sys

EXTRAS = {"boto3", "botocore", "docker", "torch", "numpy", "tensorflow", "keras", "mxnet", "sklearn", "tqdm"}
EXTRAS |= {"optuna", "starlette", "textual", "uvicorn"}

class Bare(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in EXTRAS else super().find_spec(name, path, target)

sys.meta_path = [Bare if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
from herringbone.cli.__main__ import main

answers = []
for command in json.loads(sys.argv[1]):
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            code = main(command.split())
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    answers.append([command, code, err.getvalue()])
json.dump(answers, sys.stdout)
"""

# Command -> exit code, and a part of the message.
COMMANDS = {
    "logs digit-1": (2, "no job 'digit-1' in "),
    "logs -f digit-1": (2, "did you mean digits-1?"),
    "describe digit-1": (2, "did you mean digits-1?"),
    "scale digit-1 3": (2, "did you mean digits-1?"),
    "scale digits-1 0": (2, "0 is not in the range x>=1"),
    "scale digits-1 3": (1, "only a running job can be asked"),
    "stop digit-1": (2, "did you mean digits-1?"),
    "stop digit-1 --wait --grace 5": (2, "did you mean digits-1?"),
    "stop digit-1 --grace nan": (2, "--grace nan: "),
    "stop digit-1 --grace -1": (2, "--grace -1.0: "),
    "download digit-1": (2, "did you mean digits-1?"),
    "download zebra": (2, "`herringbone ls` shows the jobs"),
    "download digit-1 output plots": (2, "did you mean digits-1?"),
    "download digits-1 plots output": (2, "expected model, output, checkpoints, logs and one folder"),
    "download digits-1 logs": (0, ""),
    "rehearse missing.py": (2, "missing.py"),
    "notify digit-1": (2, "did you mean digits-1?"),
    "repack digit-1": (2, "did you mean digits-1?"),
    "top": (0, ""),
    "top --json": (0, ""),
    "tune ls": (0, ""),
    "tune show digit-1": (2, ""),
    "tune best digit-1": (2, ""),
    "tune stop digit-1": (2, ""),
    "tune attach digit-1": (2, ""),
    "tune gone.yaml": (2, "gone.yaml: No such file"),
    "tune t.py": (2, "nothing says what to search"),
    "tune plan t.py --tuning gone.yaml": (2, "gone.yaml: No such file"),
    "metrics digit-1": (2, "did you mean digits-1?"),
    "report digit-1": (2, "did you mean digits-1?"),
    "page": (2, "pip install '.[page]'"),
    "serve --backend local_process": (2, "pip install '.[serve]'"),
    "serve keys add ada": (0, ""),
    "serve keys list": (0, ""),
    "serve keys remove bob": (2, "no key for 'bob'"),
    "stacks digit-1": (2, "did you mean digits-1?"),
    "debug digit-1": (2, "did you mean digits-1?"),
    "shell digit-1": (2, "did you mean digits-1?"),
    "export digit-1": (2, "did you mean digits-1?"),
    "rm digit-1": (2, "did you mean digits-1?"),
    "rm --older-than soon": (2, "soon"),
    "images ls": (1, "no container engine answers"),
    "images clean": (1, "no container engine answers"),
    "images test gone": (1, "no container engine answers"),
    "images push gone registry": (1, "no container engine answers"),
    "images build gone": (2, "gone"),
    "images build pytorch": (1, "no container engine answers"),
    "hosts check gone.yaml": (2, "inventory gone.yaml: No such file"),
    "hosts jobs gone.yaml": (2, "inventory gone.yaml: No such file"),
    "hosts clean gone.yaml": (2, "inventory gone.yaml: No such file"),
    "hosts clean gone.yaml --older-than soon": (2, "soon"),
    "checkpoint ls gone": (2, "gone"),
    "checkpoint verify gone": (2, "gone"),
    "partition show gone": (2, "the partition file 'gone' cannot be read"),
    "convert gone.py": (2, "gone.py: cannot be read"),
    "clean": (1, "no container engine answers"),
    "doctor": (0, ""),
    "doctor --aws": (0, ""),
    "ls": (0, ""),
    "ls --json": (0, ""),
    "plan gone.py": (2, "gone.py: no such file"),
    "plan gone.yaml": (2, "gone.yaml: No such file"),
    "plan t.py --framework gone": (2, "is not one of"),
    'plan t.py --framework tensorflow --distribution {"parameter_server":{"enabled":true}}': (2, "needs TensorFlow"),
    "plan t.py --framework mxnet": (2, "MXNet"),
    "plan t.py --instance-type gone": (2, "no backend for it"),
    "plan t.py --instance-type ssh:gone.yaml": (2, "inventory "),
    "plan t.py --instance-type slurm:gone": (2, "sinfo"),
    "plan t.py --instance-type ml.m5.large -o image_uri=x": (2, "botocore"),
    "run gone.py": (2, "gone.py: no such file"),
    "run t.py --instance-type local": (2, "no container engine answers"),
    "run t.py --instance-type ml.m5.large -o image_uri=x": (2, "botocore"),
}


@pytest.mark.parametrize("region", [None, "eu-west-1"])
def test_each_verb_without_extras_and_with_an_unknown_name(home, script, tmp_path, region):
    script("", name="t.py")
    plan = json.dumps({"hosts": [], "channels": [], "hyperparameters": {}})
    row = JobRecord(name="digits-1", backend="local_process", plan=plan, created=0.0, status="Completed")
    home.make()
    JobIndex(home.index).add(row)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "DOCKER_", "SLURM_"))
    }
    environment |= {"DOCKER_HOST": "unix:///nowhere", "PATH": str(tmp_path)} | (
        {"AWS_REGION": region} if region else {}
    )
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(list(COMMANDS))],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    wrong = {
        command: (code, err)
        for command, code, err in json.loads(run.stdout)
        if code != COMMANDS[command][0] or COMMANDS[command][1] not in err or "Traceback" in err
    }
    assert wrong == {}


def test_the_commands_have_every_verb():
    # These two need no job, machine or package.
    assert {command.partition(" ")[0] for command in COMMANDS} == set(_VERBS) - {"help", "completion"}
