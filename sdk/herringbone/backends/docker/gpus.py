"""Lists the GPUs of this machine and assigns them to containers, each GPU to at most one, also across jobs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from herringbone.backends.docker.request import ObjectLabel
from herringbone.engine.client import EngineRefusal
from herringbone_contract.errors import LaunchError, UnsupportedError

if TYPE_CHECKING:
    from herringbone.engine.client import Engine

_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9a-f-]+)\)")
_SLICE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
_FRACTION_DIGITS = 9


def list_gpus() -> str:
    """Return the output of `nvidia-smi -L`; empty without a driver."""
    try:
        run = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout if run.returncode == 0 else ""


def find_gpus(listing: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the engine's id of each GPU, or of each MIG slice of a partitioned GPU.

    >>> find_gpus("GPU 0: NVIDIA H100 (UUID: GPU-0a)", {})
    ('GPU-0a',)

    GPUs that `CUDA_VISIBLE_DEVICES` leaves out are not in the result.
    """
    # Number, UUID and slices of each GPU; nvidia-smi prints the slices below their GPU.
    devices: list[tuple[str, str, list[str]]] = []
    for line in listing.splitlines():
        if match := _GPU.match(line):
            devices.append((match[1], match[2], []))
        elif (match := _SLICE.match(line)) and devices:
            devices[-1][2].append(match[1])
    visible = environ.get(VISIBLE_VARIABLE)
    if visible is not None:
        return tuple(_id_of(name.strip(), devices) for name in visible.split(",") if name.strip())
    return tuple(gpu for _, uuid, slices in devices for gpu in (slices or [uuid]))


def split_gpus(gpus: Sequence[str], hosts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Assign the GPUs to the hosts, the same number to each.

    >>> split_gpus(["a", "b", "c", "d"], ["algo-1", "algo-2"])
    {'algo-1': ('a', 'b'), 'algo-2': ('c', 'd')}

    A remainder stays unused, because hosts of one type must be alike. Raises `UnsupportedError` when there are fewer
    GPUs than hosts.
    """
    if not hosts:
        return {}
    share = len(gpus) // len(hosts)
    if not share:
        raise UnsupportedError(
            f"instance_type 'local_gpu': {len(hosts)} host{'s' * (len(hosts) != 1)} with at least one GPU each, and "
            f"this machine has {len(gpus)} for this job; use fewer hosts, or 'local' for containers without GPUs"
        )
    return {host: tuple(gpus[index * share : (index + 1) * share]) for index, host in enumerate(hosts)}


def check_free(engine: Engine, containers: Sequence[str]) -> None:
    """Raise `LaunchError` when a container of another job had a GPU of these new containers before them.

    The containers exist already, so of two jobs that are submitted at one moment, the later one is refused.
    """
    ours = [_holder(engine.get(f"/containers/{container}/json")) for container in containers]
    filters = {"label": [ObjectLabel.GPUS]}
    for listed in engine.get("/containers/json", all=True, filters=filters):
        # A container that has ended uses no GPU. A new one will.
        if listed["Id"] in containers or listed["State"] in ("exited", "dead", "removing"):
            continue
        try:
            other = _holder(engine.get(f"/containers/{listed['Id']}/json"))
        except EngineRefusal:
            # It was removed since the list was written.
            continue
        shared = sorted({gpu for holder in ours if other.created < holder.created for gpu in holder.gpus & other.gpus})
        if shared:
            raise LaunchError(
                f"instance_type 'local_gpu': job {other.job} has {', '.join(shared)}; wait for its end (`herringbone "
                f"logs -f {other.job}`), stop it (`herringbone stop {other.job}`), or give each job GPUs of its own by "
                f"{VISIBLE_VARIABLE}"
            )


class _Holder(NamedTuple):
    """A container with GPUs: its job, when it was created, and the ids of its GPUs."""

    job: str
    created: tuple[str, str]
    gpus: frozenset[str]


def _holder(inspected: Mapping[str, Any]) -> _Holder:
    labels = inspected["Config"]["Labels"]
    # 2026-11-22T19:31:02.5Z: the engine leaves zeros at the end of the fraction out.
    seconds, _, fraction = inspected["Created"].rstrip("Z").partition(".")
    created = (seconds, fraction.ljust(_FRACTION_DIGITS, "0"))
    return _Holder(labels.get(ObjectLabel.JOB, "?"), created, frozenset(labels[ObjectLabel.GPUS].split(",")))


def _id_of(name: str, devices: Sequence[tuple[str, str, list[str]]]) -> str:
    """Return the id of a GPU or slice that `CUDA_VISIBLE_DEVICES` names by number or by the start of its id."""
    for number, uuid, slices in devices:
        if name == number or uuid.startswith(name):
            return uuid
        for mig_slice in slices:
            if mig_slice.startswith(name):
                return mig_slice
    numbers = ", ".join(number for number, _, _ in devices) or "none"
    raise UnsupportedError(f"{VISIBLE_VARIABLE} names {name!r}; the GPUs of this machine: {numbers}")
