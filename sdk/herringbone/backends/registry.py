"""The table of backends by `instance_type`; each backend is imported when it is first needed."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

from herringbone_contract.errors import JobNotFoundError, UnsupportedError, near_words

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend

# Name of a backend -> the module that has its `make_backend()`.
_MODULES = {
    "local_process": "herringbone.backends.process.backend",
    "local": "herringbone.backends.docker.backend",
    "slurm": "herringbone.backends.slurm.backend",
    "ssh": "herringbone.backends.ssh.backend",
    "sagemaker": "herringbone.backends.sagemaker.backend",
    "kubernetes": "herringbone.backends.kubernetes.backend",
}

# instance_type -> name of the backend.
_TYPES = {"local_process": "local_process", "local": "local", "local_gpu": "local"}
# Prefix of the instance_type -> name of the backend. The rest names a machine type, a partition or an inventory file.
_PREFIXES = {"ml.": "sagemaker", "slurm:": "slurm", "ssh:": "ssh", "k8s:": "kubernetes"}
# Words that users try first, with the type that they mean.
_ALIASES = {
    **dict.fromkeys(("docker", "container", "podman"), "local"),
    **dict.fromkeys(("gpu", "cuda", "docker_gpu", "local-gpu"), "local_gpu"),
    **dict.fromkeys(("process", "processes", "cpu", "localhost", "local-process"), "local_process"),
    "ssh": "ssh:hosts.yaml, the inventory of your machines",
    "slurm": "slurm:PARTITION, as sinfo lists them",
    **dict.fromkeys(("k8s", "kubernetes"), "k8s:NAMESPACE, of the cluster of your kubeconfig"),
}
# The types of EC2, such as m5.large; SageMaker writes ml. before them.
_AWS_TYPE = re.compile(r"[a-z][a-z0-9-]*\d[a-z0-9-]*\.(?:nano|micro|small|medium|\d*x?large|metal)")
# Backends whose service knows jobs that this machine's index does not have.
_SERVICES = ("sagemaker",)


def backend_for(*instance_types: str, setting: str = "instance_type") -> Backend:
    """Return the backend of a job's instance types.

    >>> backend_for("local_process").name, backend_for("local", "local_gpu").name
    ('local_process', 'local')

    Raises `UnsupportedError` for a type that no backend of this release serves, or types that no single one does. The
    message begins with `setting`, the name of the option that has the type.
    """
    names = {_name_of(instance_type, setting) for instance_type in instance_types}
    if len(names) > 1:
        raise UnsupportedError(
            f"instance_groups: no backend serves {', '.join(sorted(set(instance_types)))} in one job; give types that "
            "run in one place"
        )
    return backend_named(*names)


def _name_of(instance_type: str, setting: str) -> str:
    by_prefix = (name for prefix, name in _PREFIXES.items() if instance_type.startswith(prefix))
    name = next(by_prefix, None) or _TYPES.get(instance_type)
    if name is None:
        near = _nearest(instance_type[:100])
        hint = f"; did you mean {near}?" if near else ""
        raise UnsupportedError(
            f"{setting} {instance_type!r}: this release has no backend for it; there is: {', '.join(_TYPES)}, "
            f"slurm:PARTITION, ssh:INVENTORY, k8s:NAMESPACE, ml.*{hint}"
        )
    return name


def _nearest(instance_type: str) -> str | None:
    word = instance_type.lower()
    if word in _ALIASES:
        return _ALIASES[word]
    if _AWS_TYPE.fullmatch(word):
        return f"ml.{word}"
    near = near_words(word, _TYPES)
    return near[0] if near else None


def backend_named(name: str) -> Backend:
    """Return the backend that a stored job names. Raises `UnsupportedError` for one of another release."""
    if name not in _MODULES:
        raise UnsupportedError(f"backend {name!r}: this release has none of that name; update Herringbone")
    backend: Backend = importlib.import_module(_MODULES[name]).make_backend()
    return backend


def backend_of_job(name: str, session: object = None, instance_type: str | None = None) -> Backend:
    """Return the backend of a submitted job: the one that the index names, or a service that knows the job.

    `session` are the credentials to ask a service with, and `instance_type` is where a job runs that the index may not
    have. Raises `JobNotFoundError` with the answers of all.
    """
    # Imported here: who only makes an estimator needs no index.
    from herringbone.records.home import find_home
    from herringbone.records.index import JobIndex

    try:
        backend = backend_named(JobIndex(find_home().index).get(name).backend)
    except JobNotFoundError as unknown:
        if instance_type is None:
            return _service_with(name, session, unknown)
        backend = backend_for(instance_type)
        session = instance_type if instance_type.startswith("k8s:") else session
    # Lets the backend take the session, or refuse it.
    backend.find(name, session)
    return backend


def _service_with(name: str, session: object, unknown: JobNotFoundError) -> Backend:
    answers = [str(unknown)]
    for service in _SERVICES:
        backend = backend_named(service)
        try:
            backend.find(name, session)
        except JobNotFoundError as error:
            answers.append(str(error))
        else:
            return backend
    raise JobNotFoundError("; ".join(answers))
