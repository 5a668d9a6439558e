"""Requests of tuning jobs, for the tests of the service."""

from __future__ import annotations

from typing import Any

from tests.serve.test_members import REQUEST

NAME = "HyperParameterTuningJobName"
# Trains in no time: the loss is smallest at 3, and one of the words adds 1 to it.
SCRIPT = """
import argparse, os, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--point", type=float)
parser.add_argument("--word", default="good")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--seconds", type=float, default=0)
arguments = parser.parse_args()
for epoch in range(arguments.epochs):
    loss = (arguments.point - 3) ** 2 + (arguments.word == "bad") + 1 / (epoch + 1)
    print(f"loss {loss:.6f};", flush=True)
time.sleep(arguments.seconds)
pathlib.Path(os.environ["SM_MODEL_DIR"], "point").write_text(str(arguments.point))
"""
CONTINUOUS = {"Name": "point", "MinValue": "0", "MaxValue": "10", "ScalingType": "Linear"}
CATEGORICAL = {"Name": "word", "Values": ['"good"', '"bad"']}


def tuning(name: str, *, jobs: int | None = 3, parallel: int = 1, **config: Any) -> dict[str, Any]:
    """Return a CreateHyperParameterTuningJob request; `config` are members of HyperParameterTuningJobConfig."""
    limits = {"MaxParallelTrainingJobs": parallel} | ({} if jobs is None else {"MaxNumberOfTrainingJobs": jobs})
    return {
        NAME: name,
        "HyperParameterTuningJobConfig": {
            "Strategy": "Random",
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ResourceLimits": limits,
            "ParameterRanges": {"ContinuousParameterRanges": [CONTINUOUS]},
            "RandomSeed": 1,
            **config,
        },
        "TrainingJobDefinition": {
            "AlgorithmSpecification": {
                "TrainingImage": REQUEST["AlgorithmSpecification"]["TrainingImage"],
                "TrainingInputMode": "File",
                "MetricDefinitions": [{"Name": "loss", "Regex": "loss ([0-9.]+);"}],
            },
            "RoleArn": "arn:aws:iam::123456789012:role/me",
            "OutputDataConfig": {"S3OutputPath": "s3://mine/out"},
            "StoppingCondition": {"MaxRuntimeInSeconds": 600},
            "HyperParameterTuningResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1},
            "StaticHyperParameters": {
                "sagemaker_program": "tune.py",
                "sagemaker_submit_directory": "s3://mine/tune.tar.gz",
            },
        },
    }


def with_trial(request: dict[str, Any], **members: Any) -> dict[str, Any]:
    """Return a request with other members of its TrainingJobDefinition."""
    return {**request, "TrainingJobDefinition": {**request["TrainingJobDefinition"], **members}}


def with_static(request: dict[str, Any], **texts: str) -> dict[str, Any]:
    """Return a request with more hyperparameters that all trials share."""
    static = request["TrainingJobDefinition"]["StaticHyperParameters"]
    return with_trial(request, StaticHyperParameters={**static, **texts})
