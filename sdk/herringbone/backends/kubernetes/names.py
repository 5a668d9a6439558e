"""The names and labels of a job's objects. Pure.

A name has at most 63 characters with every suffix, because it is also a label or a part of a host's name. SageMaker's
name may have capital letters and more characters, so it is in an annotation, and labels have a hash of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from herringbone.backends.review.settings import named_place
from herringbone.plan.options.kubernetes import OWN_PREFIX, KubernetesSettings
from herringbone.plan.plan import JobPlan
from herringbone_contract.errors import OptionError

PREFIX = "k8s:"
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# A Service's name must begin with a letter, and a job's may begin with a digit.
_BEGIN = "hb-"
_HASH_CHARS = 8
# 63 characters less the longest suffix: -a999-algo-100000.
_STEM_CHARS = 63 - len("-a999-algo-100000")


class Label:
    """Labels of all objects of a job, by which they are selected."""

    JOB = f"{OWN_PREFIX}job"
    ATTEMPT = f"{OWN_PREFIX}attempt"
    HOST = f"{OWN_PREFIX}host"
    # A `PodKind`.
    PART = f"{OWN_PREFIX}part"
    QUEUE = "kueue.x-k8s.io/queue-name"


class PodKind:
    """The pods of a job: its hosts, the one that starts attempts, and the one that reads results."""

    HOST, CONTROLLER, READER = "host", "controller", "reader"


# Where a pod has the token of its service account.
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
# The annotation with SageMaker's name of the job.
JOB_NAME = f"{OWN_PREFIX}job-name"


class ObjectNames(NamedTuple):
    """The names of the objects of one attempt of a job.

    >>> names = ObjectNames("Digits-1", 2)
    >>> names.job, names.host("algo-1")
    ('hb-digits-1-e6ad2231', 'hb-digits-1-e6ad2231-a2-algo-1')
    """

    job_name: str
    attempt: int = 1

    @property
    def job(self) -> str:
        """The name of the job's own objects: its ConfigMap, which owns all others, and its controller."""
        lower = self.job_name.lower()
        stem = f"{_BEGIN}{lower}"
        # Two jobs may differ in their capital letters, or behind the cut.
        if lower != self.job_name or len(stem) > _STEM_CHARS:
            digest = self.label[:_HASH_CHARS]
            stem = f"{stem[: _STEM_CHARS - _HASH_CHARS - 1].rstrip('-')}-{digest}"
        return stem

    @property
    def hosts(self) -> str:
        """The name of the attempt's Secret, its Service, and its JobSet or TrainJob."""
        return f"{self.job}-a{self.attempt}"

    def host(self, host: str) -> str:
        return f"{self.hosts}-{host}"

    @property
    def label(self) -> str:
        """The value of the label that all objects of the job have."""
        return hashlib.sha256(self.job_name.encode()).hexdigest()[:40]

    def labels(self, part: str | None = None, host: str | None = None) -> dict[str, str]:
        """Return the labels of the job's objects; with `part`, those of the attempt's pods."""
        labels = {Label.JOB: self.label}
        if part is not None:
            labels |= {Label.PART: part, Label.ATTEMPT: str(self.attempt)}
        return labels if host is None else {**labels, Label.HOST: host}

    def selector(self, part: str) -> dict[str, str]:
        """Return the query for the pods of a part."""
        return label_query(self.labels(part))


def label_query(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the query for the objects that have these labels."""
    return {"labelSelector": ",".join(f"{name}={value}" for name, value in labels.items())}


def namespace_of(plan: JobPlan) -> str:
    """Return the namespace of a job. Raises `OptionError` or `UnsupportedError`."""
    return named_place(plan, PREFIX, _NAMESPACE, "Kubernetes", "namespace", "k8s:team-a")


def parse_namespace(instance_type: str) -> str:
    """Return the namespace of an instance type without a plan. Raises `OptionError`.

    >>> parse_namespace("k8s:team-a")
    'team-a'
    """
    name = instance_type.removeprefix(PREFIX)
    if not instance_type.startswith(PREFIX) or not _NAMESPACE.fullmatch(name):
        raise OptionError(f"{instance_type!r} names no namespace of Kubernetes; write for example 'k8s:team-a'")
    return name


def settings_of(plan: JobPlan) -> KubernetesSettings:
    """Return the job's settings for the cluster, the defaults when the user gave none."""
    return plan.options.kubernetes or KubernetesSettings()
