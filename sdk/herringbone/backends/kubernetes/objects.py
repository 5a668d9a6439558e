"""The objects of a job, as plain dicts in the order in which they are created. Pure.

    ConfigMap             named after the job: owns all others, and has its plan and the state of its attempts
      Job                 its controller, which starts the attempts
      of each attempt:
      Secret              key, environment, settings, code: mounted by the hosts, gone at the end
      Service             headless: gives the hosts their names
      Job of each host    or one JobSet, or one TrainJob, around the same pods

Only what every cluster since 1.20 has, but for `workload`. A plan has `${...}` for values that only a submission knows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from herringbone.backends.kubernetes.names import JOB_NAME, TOKEN_FOLDER, Label, PodKind, namespace_of, settings_of
from herringbone.backends.kubernetes.pods import (
    CONTAINER,
    PodContext,
    pod_template,
    template_of,
)
from herringbone.plan.plan import JobPlan

# In a Secret, by the API server's limit of 1 MiB for an object with everything in it.
MAX_SECRET_BYTES = 900 << 10
PRIVATE, CODE = "private.json", "sourcedir.tar.gz"
_NEVER_AGAIN = {"completions": 1, "parallelism": 1, "backoffLimit": 0}
_CONTROLLER_RETRIES = 6
_KEEPER = "herringbone.backends.kubernetes.attempts.keeper"
_TOKEN_SECONDS = 3600
_TRAINER = "dev.herringbone/sdk"
# What the account of the controller, and whoever submits jobs, may do in the namespace: the text of the page.
_RULES: tuple[tuple[str, str, str], ...] = (
    ("", "configmaps", "get, list, create, update, delete"),
    # The controller brings code and environment into the Secret of the next attempt.
    ("", "secrets, services", "list, create, delete"),
    ("", "pods", "get, list"),
    ("", "pods/log", "get"),
    # Over a websocket a command is a GET; the newest servers ask for "create" as well.
    ("", "pods/exec", "get, create"),
    ("", "events", "list"),
    ("batch", "jobs", "get, list, create, delete"),
    # For `workload: jobset`.
    ("jobset.x-k8s.io", "jobsets", "list, create, delete"),
)


def job_objects(plan: JobPlan, context: PodContext, files: Mapping[str, bytes] | None = None) -> list[dict[str, Any]]:
    """Return all objects of a job's first attempt; `files` are those of the Secret, None for placeholders."""
    return [
        owner(plan, context, "${PLAN}" if files is None else None),
        *([controller(plan, context)] if settings_of(plan).service_account else []),
        *attempt_objects(plan, context, files),
    ]


def attempt_objects(
    plan: JobPlan, context: PodContext, files: Mapping[str, bytes] | None = None
) -> list[dict[str, Any]]:
    """Return the objects of one attempt."""
    kinds = {"job": host_jobs, "jobset": job_set, "trainjob": train_job}
    workload = kinds[settings_of(plan).workload](plan, context)
    return [secret(plan, context, files), service(plan, context), *workload]


def owner(plan: JobPlan, context: PodContext, stored: str | None = None) -> dict[str, Any]:
    """Return the ConfigMap that owns the job's objects, and by which other machines find the job.

    `stored` is the plan's text, None to make it.
    """
    # Without the request, which has these objects once more.
    text = json.dumps(msgspec.structs.replace(plan, request=None).to_dict()) if stored is None else stored
    settings = {"grace": context.grace, "passed_on": dict(context.passed_on)}
    data = {"job": plan.job_name, "plan": text, "context": json.dumps(settings), "attempt": str(context.names.attempt)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(plan, context, None), "data": data}


def secret(plan: JobPlan, context: PodContext, files: Mapping[str, bytes] | None) -> dict[str, Any]:
    """Return the Secret of an attempt; without `files`, with a placeholder."""
    content: dict[str, Any] = {"stringData": {PRIVATE: "${PRIVATE}"}}
    if files is not None:
        content = {"data": {name: base64.b64encode(text).decode() for name, text in files.items()}}
    metadata = _metadata(plan, context, context.names.hosts)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": True, "type": "Opaque", **content}


def service(plan: JobPlan, context: PodContext) -> dict[str, Any]:
    """Return the headless Service of an attempt, which names hosts before they are ready."""
    selector = context.names.labels(PodKind.HOST)
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    metadata = _metadata(plan, context, context.names.hosts)
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def host_jobs(plan: JobPlan, context: PodContext) -> list[dict[str, Any]]:
    """Return a Job for each host. None of them starts its pod again: hosts restart together, as another attempt."""
    return [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": _metadata(plan, context, context.names.host(host.name), host=host.name, queued=True),
            "spec": {**_NEVER_AGAIN, "template": pod_template(plan, host, context)},
        }
        for host in plan.hosts
    ]


def job_set(plan: JobPlan, context: PodContext) -> list[dict[str, Any]]:
    """Return a JobSet around the same pods, which Kueue admits as a whole."""
    jobs = [
        {
            "name": host.name,
            "replicas": 1,
            "template": {"spec": {**_NEVER_AGAIN, "template": pod_template(plan, host, context)}},
        }
        for host in plan.hosts
    ]
    spec = {
        # The pods have names of their own, by the job's Service.
        "network": {"enableDNSHostnames": False},
        "successPolicy": {"operator": "All"},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": jobs,
    }
    metadata = _metadata(plan, context, context.names.hosts, queued=True)
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}]


def train_job(plan: JobPlan, context: PodContext) -> list[dict[str, Any]]:
    """Return a TrainJob of Kubeflow's Trainer, whose runtime makes the pods: one template for all hosts."""
    whole = pod_template(plan, None, context)
    template, container = whole["spec"], whole["spec"]["containers"][0]
    # The runtime has its own restart policy, and names its container.
    left_out = ("restartPolicy", "containers", "automountServiceAccountToken", "enableServiceLinks")
    pod = {name: value for name, value in template.items() if name not in left_out}
    pod["containers"] = [
        {"name": "node", "securityContext": container["securityContext"], "volumeMounts": container["volumeMounts"]}
    ]
    patch = {"template": {"metadata": whole["metadata"], "spec": pod}}
    jobs = {"replicatedJobs": [{"name": "node", "template": {"spec": patch}}]}
    trainer = {name: container[name] for name in ("image", "command", "args", "env")}
    if container["resources"]:
        trainer["resourcesPerNode"] = container["resources"]
    spec = {
        "runtimeRef": {"name": settings_of(plan).runtime or "torch-distributed"},
        "trainer": {**trainer, "numNodes": len(plan.hosts)},
        "runtimePatches": [{"manager": _TRAINER, "trainingRuntimeSpec": {"template": {"spec": jobs}}}],
    }
    metadata = _metadata(plan, context, context.names.hosts, queued=True)
    return [{"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": metadata, "spec": spec}]


def controller(plan: JobPlan, context: PodContext) -> dict[str, Any]:
    """Return the Job of the pod that starts attempts. It alone holds a token, which is of the user's account."""
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_SECONDS}}
    authority = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    container = {
        # Its log has lines of the job, and is read as a host's.
        "name": CONTAINER,
        "image": plan.arguments.image_uri,
        "command": ["python3", "-m", _KEEPER, namespace_of(plan), plan.job_name],
        # The client looks there for a kubeconfig, and the user has no home.
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108
        # What it says at a failed start is in its pod's status, so that every client can tell it.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True}],
    }
    pod = {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 5,
        "serviceAccountName": settings_of(plan).service_account,
        "containers": [container],
        "volumes": [{"name": "token", "projected": {"sources": [token, authority]}}],
    }
    template = template_of(plan, context.names.labels(PodKind.CONTROLLER), pod)
    spec = {**_NEVER_AGAIN, "backoffLimit": _CONTROLLER_RETRIES, "template": template}
    metadata = _metadata(plan, context, f"{context.names.job}-controller")
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def role(namespace: str) -> dict[str, Any]:
    """Return the Role that suffices for a job and for whoever submits it."""
    rules = [
        {"apiGroups": [group], "resources": kinds.split(", "), "verbs": verbs.split(", ")}
        for group, kinds, verbs in _RULES
    ]
    metadata = {"name": "herringbone", "namespace": namespace}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules}


def permissions() -> list[str]:
    """Return what the Role allows, each as a verb and a resource.

    >>> permissions()[-1]
    'delete jobsets.jobset.x-k8s.io'
    """
    return [
        f"{verb} {kind}{'.' if group else ''}{group}"
        for group, kinds, verbs in _RULES
        for kind in kinds.split(", ")
        for verb in verbs.split(", ")
    ]


def _metadata(
    plan: JobPlan, context: PodContext, name: str | None, *, host: str | None = None, queued: bool = False
) -> dict[str, Any]:
    """Return the metadata of an object; None is the name of the owner, which has no owner itself."""
    settings, names = settings_of(plan), context.names
    labels = names.labels(None if host is None else PodKind.HOST, host)
    if queued and settings.local_queue is not None:
        labels[Label.QUEUE] = settings.local_queue
    metadata: dict[str, Any] = {
        "name": name or names.job,
        "namespace": namespace_of(plan),
        "labels": labels,
        "annotations": {JOB_NAME: plan.job_name},
    }
    if name is not None:
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": names.job, "uid": context.owner}
        metadata["ownerReferences"] = [reference]
    return metadata
