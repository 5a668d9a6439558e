"""Which GPUs this machine has, and which container gets which: never one GPU to two containers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

from herringbone_contract.errors import UnsupportedError

_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9a-f-]+)\)")
_SLICE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


def list_gpus() -> str:
    """Return what `nvidia-smi -L` prints, nothing where there is no driver."""
    try:
        run = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout if run.returncode == 0 else ""


def find_gpus(listed: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ids by which the engine knows each GPU, or each slice of one that is cut into slices.

    >>> find_gpus("GPU 0: NVIDIA H100 (UUID: GPU-0a)", {})
    ('GPU-0a',)

    Those that `CUDA_VISIBLE_DEVICES` leaves out stay out.
    """
    whole: list[tuple[str, str, list[str]]] = []
    for line in listed.splitlines():
        if match := _GPU.match(line):
            whole.append((match[1], match[2], []))
        elif (match := _SLICE.match(line)) and whole:
            whole[-1][2].append(match[1])
    visible = environ.get(VISIBLE_VARIABLE)
    if visible is not None:
        return tuple(_named(name.strip(), whole) for name in visible.split(",") if name.strip())
    return tuple(each for _, uuid, slices in whole for each in (slices or [uuid]))


def split_gpus(gpus: Sequence[str], hosts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Share the GPUs out, each to one host, and as many to each as is even.

    >>> split_gpus(["a", "b", "c", "d"], ["algo-1", "algo-2"])
    {'algo-1': ('a', 'b'), 'algo-2': ('c', 'd')}

    A remainder is left over, for hosts of one type are alike. Raises `UnsupportedError` when there are fewer GPUs than
    hosts.
    """
    if not hosts:
        return {}
    share = len(gpus) // len(hosts)
    if not share:
        raise UnsupportedError(
            f"instance_type 'local_gpu': {len(hosts)} host{'s' * (len(hosts) != 1)} with at least one GPU each, and "
            f"this machine has {len(gpus)} for this job; use fewer hosts, or 'local' for containers without GPUs"
        )
    return {host: tuple(gpus[place * share : (place + 1) * share]) for place, host in enumerate(hosts)}


def _named(name: str, whole: Sequence[tuple[str, str, list[str]]]) -> str:
    """Return the id of what `CUDA_VISIBLE_DEVICES` names by number or by the beginning of its id."""
    for number, uuid, slices in whole:
        if name == number or uuid.startswith(name):
            return uuid
        for each in slices:
            if each.startswith(name):
                return each
    known = ", ".join(number for number, _, _ in whole) or "none"
    raise UnsupportedError(f"{VISIBLE_VARIABLE} names {name!r}; the GPUs of this machine: {known}")
