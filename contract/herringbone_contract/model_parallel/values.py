"""The types of values that the parameters of both versions of `smdistributed.modelparallel` have."""

from __future__ import annotations

import sys
from typing import Annotated, Literal, TypeVar

from msgspec import UNSET, Meta, UnsetType

PositiveInt = Annotated[int, Meta(ge=1)]
NaturalInt = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
NonNegativeFloat = Annotated[float, Meta(ge=0.0, le=sys.float_info.max)]  # JSON has no NaN and no infinity

Pipeline = Literal["interleaved", "simple", "zero_bubble", "_only_forward"]
Optimize = Literal["memory", "speed"]
PlacementStrategy = Literal["cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"]
CommunicationBackend = Literal["auto", "nccl", "gloo"]
Precision = Literal["fp32", "fp16", "bf16"]

Value = TypeVar("Value")


def value_or(value: Value | UnsetType, default: Value) -> Value:
    """Return the user's value, else the default."""
    return default if value is UNSET else value
