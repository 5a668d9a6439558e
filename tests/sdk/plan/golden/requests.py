"""Requests for jobs on every backend, whose plans `plans.json` has as commit f4f6704f made them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from herringbone import Estimator, FileSystemInput, HuggingFace, InstanceGroup, PyTorch, TensorFlow, TrainingInput

_MODEL_PARALLEL = {
    "smdistributed": {
        "modelparallel": {
            "enabled": True,
            "parameters": {
                "partitions": 2,
                "microbatches": 4,
                "pipeline": "interleaved",
                "optimize": "speed",
                "ddp": True,
            },
        }
    },
    "mpi": {
        "enabled": True,
        "processes_per_host": 4,
        "custom_mpi_options": "--mca btl_vader_single_copy_mechanism none",
    },
}
_SHARDED = {
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"hybrid_shard_degree": 2}}},
    "torch_distributed": {"enabled": True},
}
_HELPERS = {"smdistributed": {"dataparallel": {"enabled": True, "helpers": "helpers"}}}
_SERVICE = {
    "role": "arn:aws:iam::123456789012:role/SageMaker",
    "image_uri": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1",
}
_SSH = """\
hosts:
  - {name: one, host: one.example, gpus: 2}
  - {name: two, host: two.example, gpus: 2}
"""

REQUESTS: dict[str, Callable[[], tuple[Estimator, Any]]] = {
    "process": lambda: (
        PyTorch("train.py", instance_type="local_process", hyperparameters={"lr": 0.1, "on": True}),
        "data",
    ),
    "process-model-parallel": lambda: (
        PyTorch(
            "train.py",
            instance_type="local_process",
            distribution=_MODEL_PARALLEL,
            max_run=60,
            environment={"A_TOKEN": "x"},
        ),
        {"training": "data", "test": TrainingInput("file://data", content_type="text/csv")},
    ),
    "process-sharded": lambda: (
        PyTorch("train.py", instance_type="local_process", instance_count=2, distribution=_SHARDED),
        None,
    ),
    "process-groups": lambda: (
        PyTorch(
            "train.py",
            instance_groups=[
                InstanceGroup("workers", "local_process", 2),
                InstanceGroup("helpers", "local_process", 1),
            ],
            distribution=_HELPERS,
        ),
        {"training": TrainingInput("file://data", instance_groups=["workers"])},
    ),
    "ssh": lambda: (
        PyTorch(
            "train.py",
            instance_type="ssh:machines.yaml",
            instance_count=2,
            distribution={"mpi": {"enabled": True}},
            min_instance_count=1,
            max_retry_attempts=2,
        ),
        "data",
    ),
    "service": lambda: (
        PyTorch(
            "train.py",
            instance_type="ml.p4d.24xlarge",
            instance_count=2,
            distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
            **_SERVICE,
        ),
        {"training": TrainingInput("s3://mine/data", distribution="ShardedByS3Key", input_mode="Pipe")},
    ),
    "service-options": lambda: (
        TensorFlow(
            entry_point="train.py",
            instance_type="ml.m5.large",
            hyperparameters={"epochs": 3},
            subnets=["subnet-01234567"],
            security_group_ids=["sg-01234567"],
            use_spot_instances=True,
            max_run=600,
            max_wait=900,
            checkpoint_s3_uri="s3://mine/checkpoints",
            tags={"team": "vision"},
            **_SERVICE,
        ),
        {"training": FileSystemInput(file_system_id="fs-01234567", file_system_type="EFS", directory_path="/data")},
    ),
    "service-hugging-face": lambda: (
        HuggingFace(
            entry_point="train.py",
            instance_type="ml.g5.xlarge",
            transformers_version="4.49",
            pytorch_version="2.5",
            py_version="py311",
            **_SERVICE,
        ),
        {"train": "s3://mine/train"},
    ),
}


def made(folder: Path) -> dict[str, Any]:
    """Return the plan of each request as plain values, or the words of the error; `folder` becomes @FOLDER@."""
    (folder / "train.py").write_text("print('x')\n")
    (folder / "data").mkdir()
    (folder / "data" / "a.csv").write_text("1,2\n")
    (folder / "machines.yaml").write_text(_SSH)
    plans = {}
    for name, request in REQUESTS.items():
        try:
            estimator, inputs = request()
            plan = estimator.plan(inputs, job_name=name)
            plans[name] = {**plan.to_dict(), "text": str(plan), "warnings": []}
        except Exception as error:  # noqa: BLE001 - the words of an error are compared, too
            plans[name] = f"{type(error).__name__}: {error}"
    return plans
