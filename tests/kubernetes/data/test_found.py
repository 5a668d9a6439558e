"""Jobs of a namespace as rows of another machine's index."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herringbone import TrainingJob
from herringbone.backends.kubernetes.backend import KubernetesBackend
from herringbone.backends.kubernetes.ledger import note_end, parse_ledger
from herringbone.backends.kubernetes.names import JOB_NAME
from herringbone.backends.kubernetes.objects import owner
from herringbone.records.home import Home
from herringbone_contract.errors import JobNotFoundError, OptionError
from tests.kubernetes.planning import context_of, kubernetes_plan


class ConfigMaps:
    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items = items

    def call(self, method: str, path: str, body: object = None, **query: str) -> Any:
        assert (method, path) == ("GET", "api/v1/namespaces/team-a/configmaps")
        assert (body, query) == (None, {"labelSelector": "dev.herringbone/job"})
        return {"items": self.items}


def config_map(folder, name: str, created: str) -> dict[str, Any]:
    plan = kubernetes_plan(folder, name=name, environment={"TOKEN": "hush"})
    made = owner(plan, context_of(plan))
    assert made["metadata"]["annotations"] == {JOB_NAME: name}
    return {**made, "metadata": {**made["metadata"], "creationTimestamp": created, "uid": f"uid-of-{name}"}}


def test_jobs_of_others_get_rows_and_known_ones_keep_theirs(tmp_path):
    items = [config_map(tmp_path, name, f"1970-01-01T00:00:0{n}Z") for n, name in enumerate(("old", "New-1"), 1)]
    items += [{"metadata": {"creationTimestamp": "1970-01-01T00:00:09Z"}, "data": {"plan": "{"}}, {"metadata": {}}]
    backend = KubernetesBackend(Home(tmp_path / "home"), {}, connect=lambda _: ConfigMaps(items))  # type: ignore[arg-type,return-value]
    assert backend.find_jobs("k8s:team-a") == ["New-1", "old"]
    row = backend._index.get("New-1")
    assert (row.created, row.hosts, row.status) == (2.0, 2, "InProgress")
    assert json.loads(row.service or "") == {"context": None, "namespace": "team-a", "uid": "uid-of-New-1"}
    assert "hush" not in row.plan
    backend._index.update("New-1", status="Completed")
    backend.find_jobs("k8s:team-a")
    assert backend._index.get("New-1").done


@pytest.mark.parametrize("place", ["k8s:", "k8s:Team", "team-a", "k8s:a/b"])
def test_a_place_that_is_no_namespace(tmp_path, place):
    backend = KubernetesBackend(Home(tmp_path), {}, connect=lambda _: ConfigMaps([]))  # type: ignore[arg-type,return-value]
    with pytest.raises(OptionError, match="names no namespace of Kubernetes; write for example"):
        backend.find_jobs(place)


def test_the_end_in_the_ledger_keeps_what_the_controller_said(tmp_path):
    stored = config_map(tmp_path, "digits", "1970-01-01T00:00:01Z")
    answers: list[Any] = []

    class Api:
        def call(self, method: str, path: str, body: object = None, **_: str) -> Any:
            assert path == "api/v1/namespaces/team-a/configmaps/hb-digits"
            if method == "PUT":
                answers.append(body)
            return stored

    columns = {"status": "Completed", "started": 1.0, "model": "pvc://a", "failure": None}
    note_end(Api(), "team-a", "hb-digits", columns)  # type: ignore[arg-type]
    assert json.loads(answers[0]["data"]["end"]) == {"status": "Completed", "started": 1.0, "model": "pvc://a"}
    stored["data"]["end"] = json.dumps({"status": "Stopped"})
    note_end(Api(), "team-a", "hb-digits", columns)  # type: ignore[arg-type]
    assert parse_ledger(answers[1]).end == {"status": "Stopped", "started": 1.0, "model": "pvc://a"}


def test_a_job_of_another_machine_is_found_by_its_instance_type(tmp_path, monkeypatch):
    items = [config_map(tmp_path, "New-1", "1970-01-01T00:00:01Z")]
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    make = KubernetesBackend.__init__
    monkeypatch.setattr(
        KubernetesBackend,
        "__init__",
        lambda self, home, environ: make(self, home, environ, connect=lambda _: ConfigMaps(items)),  # type: ignore[arg-type,return-value]
    )
    with pytest.raises(JobNotFoundError, match="job other: k8s:team-a has none of that name; `herringbone hosts jobs"):
        TrainingJob.attach("other", instance_type="k8s:team-a")
    assert TrainingJob.attach("New-1", instance_type="k8s:team-a").name == "New-1"
    # From then on, its name suffices; where a job runs that the index has is not asked.
    assert TrainingJob.attach("New-1", instance_type="k8s:none").name == "New-1"
    for wrong in ("local", "slurm:gpu"):
        with pytest.raises((JobNotFoundError, OptionError)):
            TrainingJob.attach("gone", instance_type=wrong)
