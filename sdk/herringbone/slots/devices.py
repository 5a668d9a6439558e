"""The devices of a machine that jobs claim: GPUs, slices of GPUs, and CPU shares. Pure: text in, values out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from herringbone_contract.errors import UnsupportedError

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
# A process with less memory than this is no training: a desktop, or a library that has only looked at the GPU.
_LEAST_MEBIBYTES = 256
_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9a-zA-Z-]+)\)")
_SLICE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
_SHARE = "cpu-share-"


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of one machine.

    >>> Devices(gpus=("GPU-0a",), shares=2).all
    ('GPU-0a', 'cpu-share-1', 'cpu-share-2')

    `gpus` are ids of GPUs and slices. `shares` is the number of CPU shares. `foreign` maps GPUs to the processes that
    use them and belong to no job, in words.
    """

    gpus: tuple[str, ...] = ()
    shares: int = 0
    foreign: Mapping[str, str] = field(default_factory=dict)

    @property
    def all(self) -> tuple[str, ...]:
        """The ids of all GPUs and CPU shares."""
        return (*self.gpus, *(f"{_SHARE}{number}" for number in range(1, self.shares + 1)))


def is_share(device: str) -> bool:
    """Report whether a device is a CPU share.

    >>> is_share("cpu-share-1"), is_share("GPU-0a")
    (True, False)
    """
    return device.startswith(_SHARE)


def parse_listing(listing: str) -> list[tuple[str, str, list[str]]]:
    """Return number, UUID and slices of each GPU in the output of `nvidia-smi -L`.

    >>> parse_listing("GPU 0: NVIDIA H100 (UUID: GPU-0a)")
    [('0', 'GPU-0a', [])]
    """
    devices: list[tuple[str, str, list[str]]] = []
    for line in listing.splitlines():
        if match := _GPU.match(line):
            devices.append((match[1], match[2], []))
        # nvidia-smi prints the slices below their GPU.
        elif (match := _SLICE.match(line)) and devices:
            devices[-1][2].append(match[1])
    return devices


def find_gpus(listing: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the id of each GPU, or of each MIG slice of a partitioned GPU.

    >>> find_gpus("GPU 0: NVIDIA H100 (UUID: GPU-0a)", {})
    ('GPU-0a',)

    GPUs that `CUDA_VISIBLE_DEVICES` leaves out are not in the result.
    """
    devices = parse_listing(listing)
    visible = environ.get(VISIBLE_VARIABLE)
    if visible is not None:
        return tuple(_id_of(name.strip(), devices) for name in visible.split(",") if name.strip())
    return tuple(gpu for _, uuid, slices in devices for gpu in (slices or [uuid]))


def gpus_of(processes: str, pid: int) -> set[str]:
    """Return the GPUs that a process uses; `processes` as for `foreign_use`.

    >>> gpus_of("GPU-0a, 4711, 9000\\nGPU-1b, 9, 800", 9)
    {'GPU-1b'}
    """
    lines = [[word.strip() for word in line.split(",")] for line in processes.splitlines()]
    return {words[0] for words in lines if words[1:2] == [str(pid)]}


def foreign_use(processes: str, claimed: Sequence[str], client: int = 0) -> dict[str, str]:
    """Return the GPUs that processes use although no job has claimed them, each with its processes in words.

    >>> foreign_use("GPU-0a, 4711, 9000\\nGPU-0a, 12, 3\\nGPU-1b, 9, 800", claimed=["GPU-1b"])
    {'GPU-0a': 'process 4711'}

    `processes` is the answer of nvidia-smi to --query-compute-apps=gpu_uuid,pid,used_memory, in MiB. Processes with
    little memory do not count; those whose memory is unknown do. nvidia-smi does not tell the slice of a process. The
    process `client` submits the job: what a notebook has on a GPU must not refuse its own job.
    """
    users: dict[str, list[str]] = {}
    for line in processes.splitlines():
        gpu, pid, memory = ([word.strip() for word in line.split(",")] + ["", "", ""])[:3]
        is_large = not memory.isdigit() or int(memory) >= _LEAST_MEBIBYTES
        if (
            gpu.startswith(("GPU-", "MIG-"))
            and gpu not in claimed
            and pid.isdigit()
            and is_large
            and int(pid) != client
        ):
            users.setdefault(gpu, []).append(pid)
    return {
        gpu: f"process{'es' * (len(pids) > 1)} {', '.join(pids[:3])}{' and others' * (len(pids) > 3)}"
        for gpu, pids in users.items()
    }


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
