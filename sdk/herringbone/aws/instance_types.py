"""The GPUs of SageMaker's instance types, by name. Source: AWS's pages on accelerated EC2 instances, 2026."""

from __future__ import annotations

import re

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
