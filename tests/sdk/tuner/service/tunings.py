"""A scripted SageMaker that has tuning jobs, next to the training jobs of tests/sagemaker/service.py.

service.tunings["digits"] = [running, completed]         # one per Describe; the last one repeats
service.trials["digits"] = [summary(1, 0.9), ...]        # all pages together
service.fail("DescribeHyperParameterTuningJob", 3, "ThrottlingException")
"""

from __future__ import annotations

from typing import Any

from tests.sagemaker.service import Service

ARN = "arn:aws:sagemaker:us-west-2:123456789012:hyper-parameter-tuning-job/"
NAME = "HyperParameterTuningJobName"
STATUS = "HyperParameterTuningJobStatus"
COUNTERS = {
    "TrainingJobStatusCounters": {
        "Completed": 0,
        "InProgress": 0,
        "RetryableError": 0,
        "NonRetryableError": 0,
        "Stopped": 0,
    },
    "ObjectiveStatusCounters": {"Succeeded": 0, "Pending": 0, "Failed": 0},
}


class TuningService(Service):
    """State of the server; tests change it while the server runs."""

    def __init__(self) -> None:
        super().__init__()
        self.tunings: dict[str, list[dict[str, Any]]] = {}
        self.trials: dict[str, list[dict[str, Any]]] = {}
        self.page = 2
        self.refuse_to_stop = False

    def _CreateHyperParameterTuningJob(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = arguments[NAME]
        if name in self.tunings:
            return 400, {"__type": "ResourceInUse", "message": "Hyperparameter tuning job names must be unique"}
        self.tunings[name] = [described(arguments)]
        return 200, {"HyperParameterTuningJobArn": ARN + name}

    def _DescribeHyperParameterTuningJob(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        states = self.tunings.get(arguments[NAME])
        if states is None:
            return 400, {"__type": "ResourceNotFound", "message": "Amazon SageMaker can't find a tuning job"}
        return 200, states.pop(0) if len(states) > 1 else states[0]

    def _ListTrainingJobsForHyperParameterTuningJob(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        assert arguments["MaxResults"] == 100
        trials, start = self.trials.get(arguments[NAME], []), int(arguments.get("NextToken", 0))
        page: dict[str, Any] = {"TrainingJobSummaries": trials[start : start + self.page]}
        if start + self.page < len(trials):
            page["NextToken"] = str(start + self.page)
        return 200, page

    def _StopHyperParameterTuningJob(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = arguments[NAME]
        last = self.tunings[name][-1]
        if self.refuse_to_stop:
            self.tunings[name] = [{**last, STATUS: "Completed"}]
            return 400, {"__type": "ValidationException", "message": "The tuning job is not in a stoppable state"}
        self.stopped.append(name)
        self.tunings[name] = [{**last, STATUS: "Stopping"}, {**last, STATUS: "Stopped"}]
        return 200, {}


def described(request: dict[str, Any], status: str = "InProgress", **members: Any) -> dict[str, Any]:
    """Return SageMaker's description of a tuning job that a request created."""
    described = {name: value for name, value in request.items() if name != "Tags"}
    trial = described.get("TrainingJobDefinition")
    if trial is not None:
        # SageMaker adds the objective to the hyperparameters that all trials share.
        static = {**trial["StaticHyperParameters"], "_tuning_objective_metric": "accuracy"}
        described["TrainingJobDefinition"] = {**trial, "StaticHyperParameters": static}
    return {
        **described,
        **COUNTERS,
        "HyperParameterTuningJobArn": ARN + request[NAME],
        STATUS: status,
        "CreationTime": 1_000.0,
        **members,
    }


def summary(number: int, objective: float | None = None, status: str = "Completed", **members: Any) -> dict[str, Any]:
    """Return the summary of a trial; numbers count from 1, as SageMaker's do."""
    name = f"digits-1-{number:03d}-0a1b2c3d"
    return {
        "TrainingJobName": name,
        "TrainingJobArn": f"arn:aws:sagemaker:us-west-2:123456789012:training-job/{name}",
        "CreationTime": 1_000.0 + number,
        "TrainingStartTime": 1_060.0 + number,
        **({} if status == "InProgress" else {"TrainingEndTime": 1_100.0 + number}),
        "TrainingJobStatus": status,
        "TunedHyperParameters": {"lr": str(number / 100)},
        **(
            {}
            if objective is None
            else {
                "FinalHyperParameterTuningJobObjectiveMetric": {
                    "Type": "Maximize",
                    "MetricName": "accuracy",
                    "Value": objective,
                },
                "ObjectiveStatus": "Succeeded",
            }
        ),
        **members,
    }
