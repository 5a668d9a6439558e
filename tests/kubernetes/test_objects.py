"""The objects of a job: as literals, by the published schemas, and accepted by a real API server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from herringbone.backends.kubernetes.api import Cluster as Api
from herringbone.backends.kubernetes.api import path_of
from herringbone.backends.kubernetes.data.reader import reader_job
from herringbone.backends.kubernetes.objects import attempt_objects, job_objects, permissions, role
from herringbone.plan.plan import JobPlan
from herringbone.show.manifests import as_yaml
from herringbone_contract.errors import KubernetesError
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.golden import POD
from tests.kubernetes.planning import ARGUMENTS, context_of, kubernetes_plan

LABEL = "dev.herringbone/job"
# The oldest and the newest release of which the package has schemas; the API server of the tests is older than both.
RELEASES = ("1.25.0", kubernetes_validate.latest_version())
EVERYTHING: dict[str, Any] = {
    "gpus": 2,
    "shm_size": "1g",
    "checkpoint_s3_uri": "pvc://checkpoints/a",
    "inputs": {"train": "pvc://data/train"},
    "kubernetes": {
        "cpu": "500m",
        "memory": "1Gi",
        "priority_class": "high",
        "node_selector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
        "volumes": {"data": "/more"},
        "service_account": "herringbone",
        "image_pull_secrets": ["registry"],
        "labels": {"team": "a"},
        "annotations": {"note": "any text"},
    },
}


def everything(folder: Path, **options: Any) -> JobPlan:
    """Return a plan that uses every option."""
    asked = {**EVERYTHING, **options}
    return kubernetes_plan(folder, inputs=asked.pop("inputs"), **asked)


def test_the_objects_of_a_job(tmp_path):
    plan = kubernetes_plan(tmp_path)
    owner, secret, service, first, second = job_objects(plan, context_of(plan))
    labels = owner["metadata"]["labels"]
    assert labels == {LABEL: labels[LABEL]}
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "hb-digits", "uid": "a-uid"}
    shared = {
        "namespace": "team-a",
        "labels": labels,
        "annotations": {"dev.herringbone/job-name": "digits"},
        "ownerReferences": [reference],
    }
    assert {**owner["metadata"], "ownerReferences": [reference]} == {"name": "hb-digits", **shared}
    context = '{"grace": 110.0, "passed_on": {}}'
    assert owner["data"] == {"job": "digits", "plan": "${PLAN}", "context": context, "attempt": "1"}
    assert secret == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "hb-digits-a1", **shared},
        "immutable": True,
        "type": "Opaque",
        "stringData": {"private.json": "${PRIVATE}"},
    }
    selector = {**labels, "dev.herringbone/part": "host", "dev.herringbone/attempt": "1"}
    assert service["metadata"] == {"name": "hb-digits-a1", **shared}
    assert service["spec"] == {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    of_host = {**selector, "dev.herringbone/host": "algo-1"}
    assert first["metadata"] == {"name": "hb-digits-a1-algo-1", **shared, "labels": of_host}
    assert {name: first["spec"][name] for name in ("completions", "parallelism", "backoffLimit")} == {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": 0,
    }
    assert first["spec"]["template"]["metadata"] == {"labels": of_host}
    # The hosts differ in their names alone.
    assert json.loads(json.dumps(first).replace("algo-1", "algo-2")) == json.loads(
        json.dumps(second).replace("algo-1.hb-digits-a1", "algo-2.hb-digits-a1")
    )


def test_the_pod_of_a_host(tmp_path):
    plan = kubernetes_plan(tmp_path)
    pod = job_objects(plan, context_of(plan, grace=20.0))[3]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container.pop("command")[:2] == ["/bin/sh", "-ec"]
    assert pod == POD


def test_every_option_is_in_the_pods(tmp_path):
    plan = everything(tmp_path)
    job = next(
        each for each in job_objects(plan, context_of(plan, excluded=("n3",))) if "algo-1" in str(each["metadata"])
    )
    template = job["spec"]["template"]
    pod, container = template["spec"], template["spec"]["containers"][0]
    amounts = {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "2"}
    assert container["resources"] == {"requests": amounts, "limits": amounts}
    assert (pod["priorityClassName"], pod["nodeSelector"]) == ("high", {"pool": "gpu"})
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    # One that names no taint of ours comes after ours.
    assert pod["tolerations"][2] == {"operator": "Exists", "key": "gpu", "effect": "NoExecute", "tolerationSeconds": 5}
    assert template["metadata"]["annotations"] == {"note": "any text"}
    assert template["metadata"]["labels"]["team"] == "a"
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1073741824"}} in pod["volumes"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    whole = "/herringbone/claims/claim-0"
    assert mounts[whole] == {"name": "claim-0", "mountPath": whole, "readOnly": True}
    assert mounts["/more"] == {"name": "claim-0", "mountPath": "/more"}
    assert container["args"][5:8] == ["read", f"{whole}/train", "/opt/ml/input/data/train"]
    assert container["args"][8:11] == ["write", "/herringbone/claims/claim-1/a", "/opt/ml/checkpoints"]
    assert mounts["/herringbone/claims/claim-1"] == {"name": "claim-1", "mountPath": "/herringbone/claims/claim-1"}
    assert "'n3'" in str(pod["affinity"])


def test_the_users_choices_are_in_all_pods_of_a_job(tmp_path):
    plan = everything(tmp_path)
    templates = [each["spec"]["template"] for each in job_objects(plan, context_of(plan)) if each["kind"] == "Job"]
    templates.append(reader_job(plan, "a-uid")["spec"]["template"])
    chosen = ("nodeSelector", "priorityClassName", "imagePullSecrets", "tolerations", "securityContext")
    host, *others = templates
    for template in others:
        assert {name: template["spec"][name] for name in chosen} == {name: host["spec"][name] for name in chosen}
        assert template["metadata"]["annotations"] == host["metadata"]["annotations"]
        assert plan.options.kubernetes.labels.items() <= template["metadata"]["labels"].items()
        assert template["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("release", RELEASES)
def test_the_published_schemas_admit_the_objects(tmp_path, release):
    plan = everything(tmp_path)
    for each in [*job_objects(plan, context_of(plan)), role("team-a")]:
        kubernetes_validate.validate(each, release, strict=True)


def test_the_page_has_the_role():
    """A row of the table has kinds of objects and their verbs; several of both stand in order, apart by semicolons."""
    page, rows = Path(__file__).parents[2].joinpath("docs/do/kubernetes.md").read_text(), {}
    for kinds, verbs in re.findall(r"^\| (.+) \| ((?:get|list|create)\b.*) \|$", page, re.MULTILINE):
        for kind, verb in zip(kinds.split("; "), verbs.split("; "), strict=kinds.count(";") == verbs.count(";")):
            rows |= dict.fromkeys(re.sub(r" of `(.+)`", r".\1", kind).split(", "), verb.split(", "))
    assert [f"{verb} {kind}" for kind, verbs in rows.items() for verb in verbs] == permissions()


def test_a_namespace_may_choose_the_user(tmp_path):
    plan = kubernetes_plan(tmp_path, kubernetes={"user": "namespace"})
    pod = job_objects(plan, context_of(plan))[3]["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert "1000" not in json.dumps(pod)


def test_hosts_are_examined_where_that_is_asked_for(tmp_path):
    plan = kubernetes_plan(tmp_path, enable_infra_check=True)
    assert plan.hyperparameters["sagemaker_enable_infra_check"] == "true"


def test_the_text_of_a_plan_is_what_kubectl_takes(tmp_path):
    plan = everything(tmp_path)
    objects = job_objects(plan, context_of(plan))
    text = as_yaml(objects)
    assert list(yaml.safe_load_all(text)) == objects
    assert "&id" not in text


def test_no_secret_is_outside_of_the_secret(tmp_path):
    plan = kubernetes_plan(tmp_path, environment={"HF_TOKEN": "hush-1"}, hyperparameters={"api_key": "hush-2"})
    files = {"private.json": b"hush-1", "hyperparameters.json": b"hush-2"}
    for each in job_objects(plan, context_of(plan), files):
        assert each["kind"] == "Secret" or "hush" not in json.dumps(each)


def test_a_jobset_has_the_same_pods(tmp_path):
    plan = kubernetes_plan(tmp_path, kubernetes={"workload": "jobset", "local_queue": "team-a"})
    job_set = attempt_objects(plan, context_of(plan))[-1]
    alone = kubernetes_plan(tmp_path)
    pods = [job["spec"]["template"] for job in attempt_objects(alone, context_of(alone))[2:]]
    assert [job["template"]["spec"]["template"] for job in job_set["spec"]["replicatedJobs"]] == pods
    assert [job["name"] for job in job_set["spec"]["replicatedJobs"]] == ["algo-1", "algo-2"]
    assert job_set["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"


def test_a_trainjob_has_one_template_for_all_hosts(tmp_path):
    plan = kubernetes_plan(tmp_path, kubernetes={"workload": "trainjob", "runtime": "mine", "cpu": 2}, instance_count=3)
    spec = attempt_objects(plan, context_of(plan))[-1]["spec"]
    assert (spec["runtimeRef"], spec["trainer"]["numNodes"]) == ({"name": "mine"}, 3)
    assert spec["trainer"]["args"][:5] == ["train", "3600", "max_run of 3600 s is over: stopping", "g0", ""]
    assert spec["trainer"]["args"][6].endswith("jobs/digits/hosts/@HOST@/ml/model")
    assert spec["trainer"]["resourcesPerNode"]["limits"] == {"cpu": "2"}
    control = next(each["value"] for each in spec["trainer"]["env"] if each["name"] == "HERRINGBONE_CONTROL")
    assert control == "tcp:hb-digits-a1-node-0-0.hb-digits-a1.team-a.svc:7590"
    (job,) = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    assert {volume["name"] for volume in pod["volumes"]} == {"job", "run", "tmp", "ml", "shm", "claim-0"}
    assert pod["containers"][0]["name"] == "node"
    assert "hostname" not in pod


@pytest.fixture
def api(cluster: Cluster, namespace: str, monkeypatch) -> Iterator[Api]:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return Api(None)


@pytest.mark.kubernetes
def test_the_api_server_accepts_the_objects(api: Api, cluster: Cluster, tmp_path: Path) -> None:
    plan = everything(tmp_path, kubernetes={**EVERYTHING["kubernetes"], "priority_class": "system-node-critical"})
    for each in job_objects(plan, context_of(plan)):
        answer = api.call("POST", path_of(each["kind"], "team-a"), each, dryRun="All")
        assert answer["metadata"]["name"] == each["metadata"]["name"]
        # A member that the server does not know would be gone.
        assert _is_within(each, answer), each
    assert cluster.kubectl("get", "jobs,services", "--namespace=team-a", "--output=name") == ""


@pytest.mark.kubernetes
def test_the_api_servers_own_words_are_in_the_error(api: Api, tmp_path: Path) -> None:
    plan = kubernetes_plan(tmp_path, kubernetes={"cpu": "2", "labels": {"a": "b"}})
    job = job_objects(plan, context_of(plan))[3]
    job["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    with pytest.raises(
        KubernetesError, match='restartPolicy: Required value: valid values: "OnFailure", "Never"'
    ) as refusal:
        api.call("POST", path_of("Job", "team-a"), job, dryRun="All")
    assert (refusal.value.status, refusal.value.transient, refusal.value.denied) == (422, False, False)


def _is_within(part: Any, whole: Any) -> bool:
    """Return whether `whole` has all of `part`, which it may have completed."""
    if isinstance(part, dict):
        # The server writes this one as `data`, and leaves out what is empty.
        return all(
            key == "stringData" or value in ({}, "") or (key in whole and _is_within(value, whole[key]))
            for key, value in part.items()
        )
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(_is_within, part, whole))
    return bool(part == whole)


@pytest.mark.kubernetes
def test_a_plan_that_the_server_tries_creates_nothing(
    api: Api, cluster: Cluster, tmp_path, monkeypatch, herringbone
) -> None:
    assert api is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    Path("train.py").touch()
    Path("job.yaml").write_text(yaml.safe_dump({"entry_point": "train.py", **ARGUMENTS}))
    code, output, _ = herringbone("plan", "job.yaml", "--server")
    assert (code, output.splitlines()[-1]) == (
        0,
        "server:            the service accepts the request; nothing was created",
    )
    assert cluster.kubectl("get", "jobs,services", "--namespace=team-a", "--output=name") == ""
    cluster.kubectl("create", "quota", "q", "--hard=count/jobs.batch=0", "--namespace=team-a")
    cluster.wait(lambda: "count/jobs" in cluster.kubectl("get", "quota", "--namespace=team-a", "-oyaml"), "a quota")
    code, _, errors = herringbone("plan", "job.yaml", "--server")
    assert (code, "exceeded quota: q" in errors) == (2, True)
