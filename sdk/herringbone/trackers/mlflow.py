"""MLflow: one run a job on a tracking server, by the client of `mlflow-skinny`.

The server ignores a value that it has with the same name, step and time. So sending a batch twice changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from herringbone.trackers.fold import clean_name
from herringbone.trackers.tracker import calls_of
from herringbone_contract.errors import TrackerError

if TYPE_CHECKING:
    from herringbone.plan.destinations import Destination
    from herringbone.trackers.facts import JobFacts
    from herringbone_contract.events.format import Point

# The server's limits for one request.
_MAX_METRICS, _MAX_PARAMS = 1000, 100
_MAX_VALUE_CHARS = 6000
_JOB_TAG = "herringbone.job"
_CREATED_TAG = "herringbone.created"
# MLflow's client repeats a request for minutes and says nothing meanwhile; the exporter's own retries report the error.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_TOO_MANY_REQUESTS, _REQUEST_TIMEOUT = 429, 408
_STATUS = {"Completed": "FINISHED", "Failed": "FAILED", "Stopped": "KILLED"}


class MLflowTracker:
    """See `Tracker`. Credentials are those of MLflow's own variables, such as MLFLOW_TRACKING_TOKEN."""

    def __init__(self, destination: Destination, folder: Path) -> None:  # noqa: ARG002 - it writes no files
        self._server = destination.place
        self._experiment = destination.project
        self._client = MlflowClient(tracking_uri=self._server)
        self.state: dict[str, Any] = {}

    def begin(self, facts: JobFacts, state: Mapping[str, Any]) -> None:
        self.state = dict(state)
        with _requests():
            if "run" not in self.state:
                experiment = self._find_experiment()
                run = self._find_run(experiment, facts) or self._make_run(experiment, facts)
                address = f"{self._server.rstrip('/')}/#/experiments/{experiment}/runs/{run}"
                self.state = {"run": run, "experiment": experiment, "address": address}
            self._log_tags(facts)
            # MLflow refuses other names of parameters as it refuses those of metrics.
            values = {clean_name("mlflow", name): value for name, value in facts.hyperparameters.items()}
            params = [Param(name, value[:_MAX_VALUE_CHARS]) for name, value in values.items()]
            for begin in range(0, len(params), _MAX_PARAMS):
                self._client.log_batch(self.state["run"], params=params[begin : begin + _MAX_PARAMS])

    def log(self, points: Sequence[Point]) -> None:
        metrics = [
            Metric(point.name, point.value, int(point.time * 1000), 0 if point.step is None else point.step)
            for point in points
        ]
        with _requests():
            for begin in range(0, len(metrics), _MAX_METRICS):
                self._client.log_batch(self.state["run"], metrics=metrics[begin : begin + _MAX_METRICS])

    def end(self, facts: JobFacts) -> None:
        ended = None if facts.ended is None else int(facts.ended * 1000)
        with _requests():
            self._log_tags(facts)
            self._client.set_terminated(self.state["run"], _STATUS.get(facts.status, "FINISHED"), ended)

    def close(self) -> None:
        pass

    def _log_tags(self, facts: JobFacts) -> None:
        tags = {clean_name("mlflow", name): value for name, value in facts.tags.items()}
        self._client.log_batch(self.state["run"], tags=[RunTag(name, value) for name, value in tags.items()])

    def _find_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is not None:
            if found.lifecycle_stage != "active":
                raise TrackerError(
                    f"MLflow: the experiment {self._experiment!r} is deleted; restore it, or give another name"
                )
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(self._experiment))
        except MlflowException as error:
            # Another job of the same experiment was faster.
            if error.error_code == "RESOURCE_ALREADY_EXISTS" and (
                found := self._client.get_experiment_by_name(self._experiment)
            ):
                return str(found.experiment_id)
            raise

    def _find_run(self, experiment: str, facts: JobFacts) -> str | None:
        """Return the run that an exporter made and could not note, None without one."""
        # The names of jobs have letters, digits and hyphens only.
        wanted = f"tags.`{_JOB_TAG}` = '{facts.name}' and tags.`{_CREATED_TAG}` = '{facts.created}'"
        runs = self._client.search_runs([experiment], wanted, max_results=1)
        return str(runs[0].info.run_id) if runs else None

    def _make_run(self, experiment: str, facts: JobFacts) -> str:
        tags = {_JOB_TAG: facts.name, _CREATED_TAG: str(facts.created), "mlflow.source.name": "herringbone"}
        run = self._client.create_run(experiment, int(facts.created * 1000), tags, facts.name)
        return str(run.info.run_id)


@contextmanager
def _requests() -> Iterator[None]:
    """Run requests without the client's retries, and turn the client's errors into `TrackerError`."""
    before = {name: os.environ.get(name) for name in _SETTINGS}
    # A user's own value counts.
    os.environ.update({name: value for name, value in _SETTINGS.items() if before[name] is None})
    try:
        with calls_of("MLflow", _is_transient):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def _is_transient(error: Exception) -> bool:
    if isinstance(error, MlflowException):
        code = error.get_http_status_code()
        return bool(code >= 500 or code in (_TOO_MANY_REQUESTS, _REQUEST_TIMEOUT))
    # What the client's HTTP library raises: no route, a reset connection, a wrong certificate.
    return isinstance(error, OSError)
