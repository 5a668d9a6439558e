"""Lists the GPUs of this machine and assigns them to containers, each GPU to at most one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

from herringbone_contract.errors import UnsupportedError

_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9a-f-]+)\)")
_SLICE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


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
