"""The device on which ranks of these tests train: a CUDA device, or with `--gpu-dry` the CPU."""

from __future__ import annotations

import pytest

# Convolutions of devices compute in TF32 otherwise, three digits exact.
EXACT = {"NVIDIA_TF32_OVERRIDE": "0"}


def is_dry(config: pytest.Config) -> bool:
    """Say whether the tests run on the CPU, to show that they would run on a device."""
    return bool(config.getoption("--gpu-dry"))


def kind(config: pytest.Config) -> str:
    """Return the kind of device on which each rank must have trained."""
    return "cpu" if is_dry(config) else "cuda"
