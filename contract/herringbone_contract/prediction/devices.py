"""Describes devices: arithmetic, memory and the links between them.

    device_named("NVIDIA A100-SXM4-80GB").memory_bytes
    Device(name="mine", memory_bytes=24 << 30, operations_per_second={"float32": 3e13}, bytes_per_second=7e11)

Source of the figures: the makers' data sheets; dense arithmetic, without sparsity. Memory is what CUDA reports: up
to a tenth less than the name of the device says.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from herringbone_contract.errors import UsageError

PositiveBytes = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0.0)]
Rate = Annotated[float, Meta(gt=0.0)]
Fraction = Annotated[float, Meta(gt=0.0, le=1.0)]


class Link(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The speed of messages between two ranks: a fixed time, and bytes per second in one direction."""

    latency_s: Seconds = 0.0
    bytes_per_second: Rate


class Device(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device that a rank computes on: a GPU, or the cores that a rank of a CPU host has.

    `operations_per_second` is the peak by dtype, a multiplication and an addition counted as two; a dtype that is
    missing runs at float32's rate. "tf32" is the rate of float32 convolutions, and of float32 matrices where the script
    allows it (`torch.set_float32_matmul_precision`). `bytes_per_second` is the peak of the device's own memory.
    `fraction` is the part of both peaks that training reaches, by measurement. `call_seconds` is the time to start an
    operation. `link` is the link to the next device of the same host, None where the table does not know it.
    """

    name: str
    memory_bytes: PositiveBytes
    operations_per_second: dict[str, Rate]
    bytes_per_second: Rate
    fraction: Fraction = 0.5
    call_seconds: Seconds = 5e-6
    link: Link | None = None


_TERA, _GIGA = 1e12, 1e9
# PCI Express of generations 3, 4 and 5 with 16 lanes moves about 80 % of its nominal rate.
_PCIE3, _PCIE4, _PCIE5 = 12.5 * _GIGA, 25 * _GIGA, 50 * _GIGA
# NCCL reaches about 80 % of NVLink's nominal rate of one direction (nccl-tests, "busbw" of all_reduce on DGX machines).
_NVLINK_PART = 0.8
_NVLINK_LATENCY, _PCIE_LATENCY = 10e-6, 20e-6
# PyTorch starts an operation of an eager training step in 5 to 10 us of processor time on servers of their years.
_CALL_SECONDS = 6e-6
# The fraction holds for single operations, so it is above the fraction that whole steps reach. Whole steps reach 52 %
# of an A100's peak in bfloat16 (Narayanan et al. 2021, "Efficient large-scale language model training", table 1).
_A100 = 0.7
# Whole steps reach 40 to 45 % of an H100's peak in bfloat16 (table of MosaicML's llm-foundry): its power limit lowers
# the clock in long matrix products.
_H100 = 0.62
# BERT-large reaches 40 of a V100's 125 TFLOP/s in whole steps (benchmarks/scaling/simulated.md).
_V100 = 0.55
# Assumed, by the power limits of 70 to 350 W: no measurement of whole steps was at hand.
_BOARD = 0.55


def _device(
    name: str,
    memory: float,
    rates: dict[str, float],
    bandwidth: float,
    link: float,
    *,
    fraction: float,
) -> Device:
    """Return an entry of the table: memory and bandwidth in GB, rates in TFLOP/s, the link in bytes per second."""
    latency = _NVLINK_LATENCY if link > _PCIE5 else _PCIE_LATENCY
    return Device(
        name=name,
        memory_bytes=round(memory * _GIGA),
        operations_per_second={dtype: rate * _TERA for dtype, rate in rates.items()},
        bytes_per_second=bandwidth * _GIGA,
        fraction=fraction,
        call_seconds=_CALL_SECONDS,
        link=Link(latency_s=latency, bytes_per_second=link),
    )


def _nvlink(gigabytes: float) -> float:
    """Return the reached rate of NVLinks that together move so many GB/s in one direction."""
    return gigabytes * _GIGA * _NVLINK_PART


def _rates(float32: float, half: float, *, tf32: float | None = None, bfloat16: bool = True) -> dict[str, float]:
    """Return peak rates by dtype; devices before Ampere compute bfloat16 with their float32 units."""
    rates = {"float32": float32, "float16": half}
    if tf32 is not None:
        rates["tf32"] = tf32
    if bfloat16:
        rates["bfloat16"] = half
    return rates


_H = _rates(66.9, 989.4, tf32=494.7)
_A = _rates(19.5, 312.0, tf32=156.0)
# Of several devices that a short name fits ("A100"), the first one is meant: the most common with the least memory.
_DEVICES = (
    _device("NVIDIA B200", 191.5, _rates(75.0, 2250.0, tf32=1125.0), 8000, _nvlink(900), fraction=_H100),
    _device("NVIDIA H200", 150.1, _H, 4800, _nvlink(450), fraction=_H100),
    _device("NVIDIA H200 NVL", 150.1, _rates(60.0, 835.5, tf32=417.5), 4800, _nvlink(450), fraction=_H100),
    _device("NVIDIA H100 80GB HBM3", 85.0, _H, 3350, _nvlink(450), fraction=_H100),
    _device("NVIDIA H100 PCIe", 85.0, _rates(51.2, 756.0, tf32=378.0), 2039, _PCIE5, fraction=_H100),
    _device("NVIDIA H100 NVL", 99.9, _rates(60.0, 835.5, tf32=417.5), 3938, _nvlink(300), fraction=_H100),
    _device("NVIDIA GH200 480GB", 101.2, _H, 4000, _PCIE5, fraction=_H100),
    _device("NVIDIA A100-SXM4-40GB", 42.4, _A, 1555, _nvlink(300), fraction=_A100),
    _device("NVIDIA A100-SXM4-80GB", 85.0, _A, 2039, _nvlink(300), fraction=_A100),
    _device("NVIDIA A100-PCIE-40GB", 42.4, _A, 1555, _PCIE4, fraction=_A100),
    _device("NVIDIA A100 80GB PCIe", 85.0, _A, 1935, _PCIE4, fraction=_A100),
    _device("NVIDIA A10G", 23.7, _rates(35.0, 70.0, tf32=35.0), 600, _PCIE4, fraction=_BOARD),
    _device("NVIDIA A10", 23.7, _rates(31.2, 125.0, tf32=62.5), 600, _PCIE4, fraction=_BOARD),
    _device("NVIDIA L40S", 47.6, _rates(91.6, 362.0, tf32=183.0), 864, _PCIE4, fraction=_BOARD),
    _device("NVIDIA L4", 23.6, _rates(30.3, 121.0, tf32=60.0), 300, _PCIE4, fraction=_BOARD),
    _device("Tesla V100-SXM2-16GB", 16.9, _rates(15.7, 125.0, bfloat16=False), 900, _nvlink(150), fraction=_V100),
    _device("Tesla V100-SXM2-32GB", 34.0, _rates(15.7, 125.0, bfloat16=False), 900, _nvlink(150), fraction=_V100),
    _device("Tesla V100-SXM3-32GB", 34.0, _rates(16.4, 131.0, bfloat16=False), 981, _nvlink(150), fraction=_V100),
    _device("Tesla V100-PCIE-16GB", 16.9, _rates(14.0, 112.0, bfloat16=False), 900, _PCIE3, fraction=_V100),
    _device("Tesla V100-PCIE-32GB", 34.0, _rates(14.0, 112.0, bfloat16=False), 900, _PCIE3, fraction=_V100),
    _device("Tesla T4", 15.8, _rates(8.1, 65.0, bfloat16=False), 320, _PCIE3, fraction=_BOARD),
    # A board has two of these.
    _device("Tesla K80", 12.0, {"float32": 4.1}, 240, _PCIE3, fraction=_BOARD),
)
_MAKERS = {"nvidia", "tesla"}


def device_named(name: str) -> Device:
    """Return the device of a name, as NVML and `nvidia-smi` report it or a shorter one.

    >>> device_named("NVIDIA A100-SXM4-80GB").memory_bytes, device_named("a100-80gb").name, device_named("T4").name
    (85000000000, 'NVIDIA A100-SXM4-80GB', 'Tesla T4')

    Raises `UsageError` for a device that the table does not know, with the three figures to give instead.
    """
    words = _words(name)
    same = (device for device in _DEVICES if _words(device.name) == words)
    alike = (device for device in _DEVICES if _fits(words, _words(device.name)))
    device = next(same, None) or next(alike, None)
    if device is not None:
        return device
    part = " It is a part of a GPU." if "mig" in words else ""
    known = ", ".join(device.name for device in _DEVICES)
    raise UsageError(
        f"device {name!r} is not in the table of devices.{part} Give its three figures: memory, arithmetic (FLOP/s) and"
        f" memory bandwidth (bytes/s), as in --device memory=24GiB,flops=30e12,bandwidth=600e9. The table has: {known}"
    )


def _words(name: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _MAKERS]


def _fits(words: list[str], known: list[str]) -> bool:
    """Return True if words begin with the model of a known device and name nothing that the device has not."""
    # NVML does not write the form of an H100 or H200 with NVLink, which users call SXM.
    forms = [*known, "sxm5" if "pcie" not in known else "pcie"]
    return words[:1] == known[:1] and all(any(form.startswith(word) for form in forms) for word in words)
