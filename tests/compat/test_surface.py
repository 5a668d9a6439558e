"""The public names of SDK v2's modules that train: each is served, refused by name, or a placeholder."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.peer.test_peer import HERE, PEER_PYTHON

MODULES = (
    "sagemaker", "sagemaker.analytics", "sagemaker.debugger", "sagemaker.estimator", "sagemaker.huggingface",
    "sagemaker.image_uris", "sagemaker.inputs", "sagemaker.instance_group", "sagemaker.job", "sagemaker.local",
    "sagemaker.mxnet", "sagemaker.parameter", "sagemaker.pytorch", "sagemaker.remote_function", "sagemaker.s3",
    "sagemaker.s3_utils", "sagemaker.session", "sagemaker.sklearn", "sagemaker.tensorflow", "sagemaker.tuner",
    "sagemaker.utils", "sagemaker.xgboost", "sagemaker.processing", "sagemaker.workflow.pipeline", "sagemaker.model",
)  # fmt: skip
# A name that is missing, or a parameter that nothing takes.
FIND = """
import importlib, inspect, json, sys

def lacks(called, wanted):
    if isinstance(called, type) and type(called).__name__ == "Placeholder":
        return []
    try:
        found = inspect.signature(called).parameters
    except (TypeError, ValueError):
        return []
    takes_all = any(one.kind == one.VAR_KEYWORD for one in found.values())
    return [] if takes_all else [name for name in wanted if name not in found]

missing = []
for module, names in json.load(open(sys.argv[1])).items():
    ours = importlib.import_module(module)
    for name, described in names.items():
        thing = getattr(ours, name)
        wanted = described.get("init", described.get("parameters"))
        missing += [f"{module}.{name}({one})" for one in lacks(thing, wanted)]
        # A session refuses what it has not by its instances.
        owner = thing() if name in ("Session", "LocalSession") and type(thing) is type else thing
        for member, wanted in described.get("members", {}).items():
            path = f"{module}.{name}.{member}"
            if not hasattr(owner, member):
                missing.append(path)
            elif callable(found := getattr(owner, member)):
                missing += [f"{path}({one})" for one in lacks(found, wanted)]
print(json.dumps(sorted(set(missing))))
"""
# Alternative constructors from parts of an answer of AWS's, and the two errors, which nobody else makes.
NOT_HERE = ("from_job_desc", "hyperparameter_ranges_dict", "sagemaker.exceptions.")


@pytest.mark.peer
@pytest.mark.skipif(not PEER_PYTHON.exists(), reason="run tests/peer/setup first: the peer is 310 MB")
def test_every_public_name_of_sdk_v2_is_here_or_refuses_by_name(run, tmp_path):
    asked = subprocess.run([PEER_PYTHON, HERE / "ask_names.py", *MODULES], capture_output=True)
    assert asked.returncode == 0, asked.stderr.decode()
    (tmp_path / "names.json").write_bytes(asked.stdout)
    (tmp_path / "find.py").write_text(FIND)
    done = run("find.py", "names.json", env={"HERRINGBONE_ACCOUNT": "aws"})
    assert done.returncode == 0, done.stderr
    assert [name for name in json.loads(done.stdout) if not any(part in name for part in NOT_HERE)] == []
