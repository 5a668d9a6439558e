"""Walk trips through the client, and list the rooms that each enters, in their order.

Usage: `python -m scripts.trips [TRIP...]`. A trip is a small use of the client that starts no job. A room is a folder
of modules, and counts when one of its functions is called; the number of modules is that of files a reader opens.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from herringbone import PyTorch
from herringbone.api.planning import backend_of, plan_request
from herringbone.events.summary import summary_of
from herringbone.events.view import JobView
from herringbone.records.index import JobRecord
from herringbone.serve.settings import HostType, Mapping, Settings
from herringbone.serve.translate import translate
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.parameters import ContinuousParameter
from herringbone.tuner.trial_plan import shared_request, trial_request
from herringbone.tuner.trials import Proposal
from herringbone.views.page.data import row_data
from herringbone.views.top.rows import row_of

_PIPELINE = {
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2, "microbatches": 4}}},
    "mpi": {"enabled": True, "processes_per_host": 2},
}
_REQUEST = {
    "TrainingJobName": "digits-1",
    "AlgorithmSpecification": {"TrainingImage": "mine/pytorch:1", "TrainingInputMode": "File"},
    "RoleArn": "arn:aws:iam::000000000000:role/me",
    "OutputDataConfig": {"S3OutputPath": "s3://mine/out/"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    "HyperParameters": {
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": '"s3://mine/code"',
        "epochs": "2",
    },
}


def _estimator(**options: Any) -> PyTorch:
    return PyTorch("train.py", instance_type="local_process", hyperparameters={"lr": 0.1}, **options)


def _trial(_: Path) -> None:
    asked = _estimator()._asked(None)
    plan = plan_request(asked, backend_of(asked), "search-001")
    definition = TuningDefinition(name="search", metric="loss", ranges={"lr": ContinuousParameter(0, 1)}, max_jobs=2)
    shared = shared_request(plan, asked, {}, None)
    trial = trial_request(shared, definition, Proposal(0, {"lr": 0.5}), job="search-001", checkpoints=None)
    plan_request(trial, backend_of(trial), "search-001")


def _create(folder: Path) -> None:
    (folder / "mine" / "code").mkdir(parents=True, exist_ok=True)
    (folder / "mine" / "code" / "train.py").touch()
    settings = Settings(
        backend="local_process", buckets=str(folder), mapping=Mapping(instance_types={"ml.*": HostType()})
    )
    translated = translate(_REQUEST, settings)
    plan_request(translated, backend_of(translated), "digits-1")


def _metric(_: Path) -> None:
    record = JobRecord(name="a", backend="local", plan="{}", created=0.0, secondary_status="Training")
    event = {"kind": "metrics", "t": 1.0, "name": "loss", "values": [0.5]}
    view = JobView().take_all([event])
    summary = summary_of(view, running=True, now=2.0)
    row_of(record, view, now=2.0)
    row_data(record, summary, now=2.0)


TRIPS: dict[str, Callable[[Path], object]] = {
    "distribution": lambda _: _estimator(distribution=_PIPELINE).plan(),
    "channel": lambda _: _estimator().plan({"training": "data"}),
    "hyperparameter": lambda _: _estimator().hyperparameters(),
    "bucket": lambda folder: _estimator(output_path=str(folder)).plan(),
    "metric event": _metric,
    "trial": _trial,
    "CreateTrainingJob": _create,
}


def walk(trip: Callable[[Path], object], folder: Path) -> tuple[list[str], int]:
    """Return the rooms in the order in which the trip first enters each, and the number of modules that it enters."""
    rooms: dict[str, None] = {}
    modules: set[str] = set()

    def enter(frame: Any, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and frame.f_code.co_name != "<module>" and name.startswith("herringbone"):
            rooms.setdefault(name.rpartition(".")[0])
            modules.add(name)

    sys.setprofile(enter)
    try:
        trip(folder)
    finally:
        sys.setprofile(None)
    return [room.removeprefix("herringbone.") for room in rooms], len(modules)


def main() -> None:
    for name in sys.argv[1:] or TRIPS:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch).resolve()
            os.environ["HERRINGBONE_HOME"] = str(folder / "home")
            os.chdir(folder)
            (folder / "train.py").touch()
            (folder / "data").mkdir()
            (folder / "data" / "a").touch()
            # The first time imports modules, whose classes are made by functions of theirs.
            TRIPS[name](folder)
            rooms, modules = walk(TRIPS[name], folder)
            os.chdir("/")
        print(f"{name}: {len(rooms)} rooms, {modules} modules: {' > '.join(rooms)}")


if __name__ == "__main__":
    main()
