"""The GPUs and the network of SageMaker's instance types, by name.

    accelerators("ml.p4d.24xlarge")     # 8 of "NVIDIA A100-SXM4-40GB", 400 Gbit/s

Source: AWS's pages on accelerated EC2 instances, 2026.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from herringbone_contract.prediction.devices import Device, device_named

# A family that has GPUs: p3, p4d, g5, g6e, ... In c6g the letter g stands for a Graviton processor.
_GPU_FAMILY = re.compile(r"[gp]r?\d\w*(?:-\w+)?")
_SMALL = dict.fromkeys(("xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge"), 1)
_G5 = _SMALL | {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8}
_EIGHT = {"24xlarge": 8, "48xlarge": 8}
_GPUS: dict[str, dict[str, int]] = {
    "p2": {"xlarge": 1, "8xlarge": 8, "16xlarge": 16},
    "p3": {"2xlarge": 1, "8xlarge": 4, "16xlarge": 8},
    "p3dn": _EIGHT,
    "p4d": _EIGHT,
    "p4de": _EIGHT,
    "p5": {"4xlarge": 1, "48xlarge": 8},
    "p5e": _EIGHT,
    "p5en": _EIGHT,
    "p6-b200": _EIGHT,
    "g4dn": _SMALL | {"12xlarge": 4},
    "g5": _G5,
    "g6": _G5,
    "g6e": _G5,
    "gr6": {"4xlarge": 1, "8xlarge": 1},
}

_DEVICES = {
    "p2": "Tesla K80",
    "p3": "Tesla V100-SXM2-16GB",
    "p3dn": "Tesla V100-SXM2-32GB",
    "p4d": "NVIDIA A100-SXM4-40GB",
    "p4de": "NVIDIA A100-SXM4-80GB",
    "p5": "NVIDIA H100 80GB HBM3",
    "p5e": "NVIDIA H200",
    "p5en": "NVIDIA H200",
    "p6-b200": "NVIDIA B200",
    "g4dn": "Tesla T4",
    "g5": "NVIDIA A10G",
    "g6": "NVIDIA L4",
    "g6e": "NVIDIA L40S",
    "gr6": "NVIDIA L4",
}
_G5_GBIT = {
    "xlarge": 2.5,
    "2xlarge": 5.0,
    "4xlarge": 10.0,
    "8xlarge": 25.0,
    "12xlarge": 40.0,
    "16xlarge": 25.0,
    "24xlarge": 50.0,
    "48xlarge": 100.0,
}
# Gbit/s that an instance sends for hours: "up to 10" means less, because the credits for more are spent in minutes.
_GBIT: dict[str, dict[str, float]] = {
    "p2": {"xlarge": 1.0, "8xlarge": 10.0, "16xlarge": 25.0},
    "p3": {"2xlarge": 2.5, "8xlarge": 10.0, "16xlarge": 25.0},
    "p3dn": {"24xlarge": 100.0},
    "p4d": {"24xlarge": 400.0},
    "p4de": {"24xlarge": 400.0},
    "p5": {"4xlarge": 100.0, "48xlarge": 3200.0},
    "p5e": {"48xlarge": 3200.0},
    "p5en": {"48xlarge": 3200.0},
    "p6-b200": {"48xlarge": 3200.0},
    "g4dn": {
        "xlarge": 5.0,
        "2xlarge": 10.0,
        "4xlarge": 20.0,
        "8xlarge": 50.0,
        "12xlarge": 50.0,
        "16xlarge": 50.0,
    },
    "g5": _G5_GBIT,
    "g6": _G5_GBIT,
    "g6e": _G5_GBIT | {"4xlarge": 8.0, "12xlarge": 100.0, "16xlarge": 35.0, "24xlarge": 200.0, "48xlarge": 400.0},
    "gr6": {"4xlarge": 10.0, "8xlarge": 25.0},
}


class Accelerators(NamedTuple):
    """The equal GPUs of an instance, and bytes per second of its network in one direction."""

    device: Device
    gpus: int
    network_bytes_per_second: float


def accelerators(instance_type: str) -> Accelerators | None:
    """Return the GPUs and the network of an instance type; None without GPUs, or for a type that is not in the table.

    >>> known = accelerators("ml.g5.12xlarge")
    >>> known.device.name, known.gpus, known.network_bytes_per_second
    ('NVIDIA A10G', 4, 5000000000.0)
    """
    count = num_gpus(instance_type)
    family, _, size = instance_type.removeprefix("ml.").partition(".")
    if not count or family not in _DEVICES:
        return None
    gbit = _GBIT.get(family, {}).get(size)
    return None if gbit is None else Accelerators(device_named(_DEVICES[family]), count, gbit * 1e9 / 8)


def num_gpus(instance_type: str) -> int | None:
    """Return the number of GPUs of an instance type; None for a type with GPUs that this table does not know.

    >>> num_gpus("ml.p4d.24xlarge"), num_gpus("ml.c6g.4xlarge"), num_gpus("ml.p9.48xlarge")
    (8, 0, None)
    """
    _, _, name = instance_type.partition("ml.")
    family, _, size = name.partition(".")
    if _GPU_FAMILY.fullmatch(family) is None:
        return 0
    return _GPUS.get(family, {}).get(size)
