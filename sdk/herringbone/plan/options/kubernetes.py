"""The option `kubernetes`: what a job's pods request from a cluster, apart from the namespace."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from herringbone_contract.errors import OptionError

# The rules of the API server for names of objects, for keys and values of labels, and for quantities.
_DOMAIN = r"(?=.{1,253}(?:/|$))[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_NAME = re.compile(_DOMAIN)
_WORD = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"({_DOMAIN}/)?{_WORD}")
_VALUE = re.compile(rf"({_WORD})?")
_CPUS = re.compile(r"(?=.*[1-9])[0-9]{1,15}(\.[0-9]{1,9})?m?")
_MEMORY = re.compile(r"(?=.*[1-9])[0-9]{1,15}(\.[0-9]{1,9})?([MGTPE]i?)")
# Resources that nodes have by themselves have no domain, and those of quotas begin with `requests.`.
_RESOURCE = re.compile(rf"(?!requests\.){_DOMAIN}/{_WORD}")
_MOUNT = re.compile(r"/[A-Za-z0-9_.-][A-Za-z0-9_./-]*")
# The prefix of labels and annotations by which Herringbone finds its objects.
OWN_PREFIX = "dev.herringbone/"
# Labels by which the cluster's own controllers find the pods that they have made.
_TAKEN = re.compile(
    r"((batch\.kubernetes\.io/)?(controller-uid|job-name|job-completion-index))|jobset\.sigs\.k8s\.io/.*"
)
_MAX_ANNOTATION_BYTES = 256 << 10
# Folders of a pod in which Herringbone mounts volumes of its own.
_OWN_FOLDERS = ("/opt/ml", "/opt/herringbone", "/herringbone", "/dev", "/proc", "/sys", "/tmp")  # noqa: S108
# Folders of the image without which nothing runs.
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc", "/run", "/var/run")


class Toleration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One taint that the job's pods accept, with the members of Kubernetes' own object."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    seconds: int | None = msgspec.field(default=None, name="tolerationSeconds")


class KubernetesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The request for each pod: `kubernetes={"cpu": "8", "memory": "64Gi", "local_queue": "team-a"}`.

    - `context` is a context of the kubeconfig, instead of its current one.
    - `cpu` and `memory` are each pod's share of its node; `gpus` (an option of its own) counts in `gpu_resource`.
    - `node_selector`, `tolerations`, `priority_class`, `image_pull_secrets`, `labels` and `annotations` are those of
      the pods. `volumes` maps claims to their folders in the pods.
    - `user` is the uid and gid of the pods; "namespace" names none, for clusters that give each namespace its own.
    - `service_account` runs the job's controller; pods with ranks hold no token.
    - `local_queue` is Kueue's. With several hosts it needs a `workload` that is admitted as a whole: "jobset", or
      "trainjob" with the `runtime` of Kubeflow's Trainer.
    """

    context: str | None = None
    local_queue: str | None = None
    priority_class: str | None = None
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    gpu_resource: str = "nvidia.com/gpu"
    cpu: str | int | float | None = None
    memory: str | None = None
    volumes: dict[str, str] = {}
    service_account: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    user: int | Literal["namespace"] = 1000
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    workload: Literal["job", "jobset", "trainjob"] = "job"
    runtime: str | None = None


def check_kubernetes_settings(settings: KubernetesSettings) -> None:
    """Raise `OptionError` for a value that no API server takes. Pure."""
    for name in ("local_queue", "priority_class", "service_account", "runtime"):
        value = getattr(settings, name)
        if value is not None:
            _check(_NAME, name, value, "the name of an object: lower case letters, digits, '-' and '.'")
    if settings.local_queue is not None:
        _check(_VALUE, "local_queue", settings.local_queue, "at most 63 characters: it is the value of a label, too")
    for value in (*settings.image_pull_secrets, *settings.volumes):
        _check(_NAME, "a name in image_pull_secrets or volumes", value, "lower case letters, digits, '-' and '.'")
    if settings.cpu is not None:
        _check(_CPUS, "cpu", str(settings.cpu), "an amount above 0, such as '500m' or 8")
    if settings.memory is not None:
        _check(_MEMORY, "memory", settings.memory, "an amount with its unit, such as '512Mi' or '64Gi'")
    if settings.user != "namespace" and not 0 < settings.user < 1 << 31:
        raise OptionError(f"kubernetes: user {settings.user} is root, or no uid; give one from 1 on, or 'namespace'")
    _check(_RESOURCE, "gpu_resource", settings.gpu_resource, "a resource of a device plugin, such as 'nvidia.com/gpu'")
    _check_pairs("node_selector", settings.node_selector, _VALUE.fullmatch)
    _check_pairs("labels", settings.labels, _VALUE.fullmatch)
    _check_pairs("annotations", settings.annotations, lambda _: True)
    for label in filter(_TAKEN.fullmatch, settings.labels):
        raise OptionError(f"kubernetes: labels {label!r}: the cluster's controllers set it; choose another key")
    size = sum(len(word.encode()) for pair in settings.annotations.items() for word in pair)
    # Herringbone's own are short.
    if size > _MAX_ANNOTATION_BYTES - 1024:
        raise OptionError(f"kubernetes: annotations have {size} bytes together; Kubernetes takes 256 KiB of an object")
    _check_mounts(settings.volumes)
    for toleration in settings.tolerations:
        _check_toleration(toleration)
    if settings.runtime is not None and settings.workload != "trainjob":
        raise OptionError("kubernetes: runtime is for workload 'trainjob'; give that, too, or leave runtime out")


def _check(pattern: re.Pattern[str], name: str, value: str, wanted: str) -> None:
    if not pattern.fullmatch(value):
        raise OptionError(f"kubernetes: {name} {value[:80]!r} is not one that Kubernetes takes; write {wanted}")


def _check_pairs(name: str, pairs: Mapping[str, str], is_valid: Callable[[str], object]) -> None:
    for key, value in pairs.items():
        _check(_KEY, f"the key of {name}", key, "letters, digits, '-', '_' and '.', with a domain and '/' before them")
        if key.startswith(OWN_PREFIX):
            raise OptionError(f"kubernetes: {name} {key!r}: Herringbone sets {OWN_PREFIX}* itself; choose another key")
        if not is_valid(value):
            raise OptionError(
                f"kubernetes: {name} {key!r} has the value {value[:80]!r}; Kubernetes takes at most 63 letters, digits,"
                " '-', '_' and '.', with a letter or a digit first and last"
            )


def _check_mounts(volumes: Mapping[str, str]) -> None:
    if len({posixpath.normpath(folder) for folder in volumes.values()}) < len(volumes):
        raise OptionError("kubernetes: volumes: two claims have the same folder; give each a folder of its own")
    for claim, folder in volumes.items():
        inside = f"{posixpath.normpath(folder)}/"
        taken = next((own for own in (*_OWN_FOLDERS, *_SYSTEM) if inside.startswith(f"{own}/")), None)
        if not _MOUNT.fullmatch(folder) or ".." in folder.split("/") or taken or inside == "/opt/":
            needed = taken or ("/opt" if inside == "/opt/" else "")
            why = f"the job or its image needs {needed}" if needed else "it is no absolute path of plain letters"
            raise OptionError(f"kubernetes: volumes: claim {claim} at {folder!r}: {why}; write for example '/data'")


def _check_toleration(toleration: Toleration) -> None:
    shown = msgspec.to_builtins(toleration)
    if toleration.key is not None:
        _check(_KEY, "a key of tolerations", toleration.key, "letters, digits, '-', '_' and '.', as the taint has it")
    if toleration.value is not None:
        _check(
            _VALUE, "a value of tolerations", toleration.value, "letters, digits, '-', '_' and '.', as the taint has it"
        )
    if toleration.operator == "Exists" and toleration.value is not None:
        raise OptionError(f"kubernetes: tolerations {shown}: operator 'Exists' has no value; leave it out")
    if toleration.operator == "Equal" and toleration.key is None:
        raise OptionError(f"kubernetes: tolerations {shown}: give a key, or operator 'Exists', which accepts all")
    if toleration.seconds is not None and toleration.effect != "NoExecute":
        raise OptionError(f"kubernetes: tolerations {shown}: tolerationSeconds goes with effect 'NoExecute'")
