"""Record what the released `sagemaker` package sends to CreateTrainingJob for each case of cases.json; no network.

Usage, with the Python that `tests/peer/setup` makes: `.venv-peer/bin/python tests/sagemaker/ask_peer.py [FOLDER]`.
"""

# ruff: noqa: E402 - `recording` sets the environment before the peer is imported
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "peer"))

from recording import Recorder, record
from sagemaker.estimator import Estimator
from sagemaker.inputs import FileSystemInput, ShuffleConfig, TrainingInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.pytorch import PyTorch
from sagemaker.tensorflow import TensorFlow

KINDS = {"Estimator": Estimator, "PyTorch": PyTorch, "TensorFlow": TensorFlow}
ARN = "arn:aws:sagemaker:us-west-2:123456789012:training-job/none"


def fit(case, session):
    arguments = dict(case["arguments"])
    if "instance_groups" in arguments:
        arguments["instance_groups"] = groups(arguments["instance_groups"])
    if "instance_groups" in arguments.get("distribution", {}):
        names = arguments["distribution"]["instance_groups"]
        by_name = {group.instance_group_name: group for group in arguments["instance_groups"]}
        arguments["distribution"] = {**arguments["distribution"], "instance_groups": [by_name[name] for name in names]}
    estimator = KINDS[case["estimator"]](sagemaker_session=session, **arguments)
    estimator.fit(inputs(case.get("inputs")), wait=False, job_name="digits-1")


def groups(descriptions):
    return [
        InstanceGroup(*(group[f"instance_{key}"] for key in ("group_name", "type", "count"))) for group in descriptions
    ]


def inputs(value):
    return {name: channel(entry) for name, entry in value.items()} if isinstance(value, dict) else value


def channel(value):
    if isinstance(value, str):
        return value
    if "file_system_id" in value:
        return FileSystemInput(**value)
    arguments = dict(value)
    if "shuffle_config" in arguments:
        arguments["shuffle_config"] = ShuffleConfig(arguments["shuffle_config"]["seed"])
    return TrainingInput(**arguments)


if __name__ == "__main__":
    record(FOLDER, Recorder("CreateTrainingJob", {"TrainingJobArn": ARN}), fit)
