"""Which backend serves which `instance_type`; each is imported when it is first asked for."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

from herringbone_contract.errors import UnsupportedError

if TYPE_CHECKING:
    from herringbone.backends.base import Backend

# A backend's name -> the module that has its `make_backend()`.
_MODULES = {
    "local_process": "herringbone.backends.process.backend",
    "local": "herringbone.backends.docker.backend",
    "slurm": "herringbone.backends.slurm.backend",
    "ssh": "herringbone.backends.ssh.backend",
    "sagemaker": "herringbone.backends.sagemaker.backend",
}

# instance_type -> the backend's name.
_TYPES = {"local_process": "local_process", "local": "local", "local_gpu": "local"}
# How instance types start that name something of a backend's own: SageMaker's machines, a cluster's partition, a file.
_STARTS = {"ml.": "sagemaker", "slurm:": "slurm", "ssh:": "ssh"}


def backend_for(*instance_types: str) -> Backend:
    """Return the backend of a job's instance types.

    >>> backend_for("local_process").name, backend_for("local", "local_gpu").name
    ('local_process', 'local')

    Raises `UnsupportedError` for a type that no backend of this release serves, or types that no single one does.
    """
    names = {_name_of(instance_type) for instance_type in instance_types}
    if len(names) > 1:
        raise UnsupportedError(
            f"instance_groups: no backend serves {', '.join(sorted(set(instance_types)))} in one job; give types that "
            "run in one place"
        )
    return backend_named(*names)


def _name_of(instance_type: str) -> str:
    named = (name for start, name in _STARTS.items() if instance_type.startswith(start))
    name = next(named, None) or _TYPES.get(instance_type)
    if name is None:
        near = difflib.get_close_matches(instance_type, _TYPES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UnsupportedError(
            f"instance_type {instance_type!r}: this release has no backend for it; there is: {', '.join(_TYPES)}, "
            f"slurm:PARTITION, ssh:INVENTORY, ml.*{hint}"
        )
    return name


def backend_named(name: str) -> Backend:
    """Return the backend that a stored job names. Raises `UnsupportedError` for one of another release."""
    if name not in _MODULES:
        raise UnsupportedError(f"backend {name!r}: this release has none of that name; update Herringbone")
    backend: Backend = importlib.import_module(_MODULES[name]).make_backend()
    return backend
