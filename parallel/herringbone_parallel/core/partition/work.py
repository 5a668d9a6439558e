"""Estimates the seconds of an operation from its arithmetic and the bytes that it reads and writes.

An estimate is the same in every run and on every rank; a measured time is not. A partition depends only on the ratio of
modules and messages, so the rates are round numbers of a typical device rather than of the device in use.
"""

from __future__ import annotations

from dataclasses import dataclass

from herringbone_parallel.core.partition.costs import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The sustained rates of a kind of device, and the link between two devices.

    >>> Device(operations_per_second=1e9, bytes_per_second=1e8, call_seconds=1e-6, link=CPU.link).seconds(2000, 100)
    3e-06

    `operations_per_second` counts a multiplication and an addition as two. `call_seconds` is the time to start any
    operation, even a small one.
    """

    operations_per_second: float
    bytes_per_second: float
    call_seconds: float
    link: Link

    def seconds(self, operations: int, moved_bytes: int) -> float:
        """Return the seconds of one operation."""
        # The roofline model: arithmetic and memory traffic overlap, so the slower of the two decides.
        busy = max(operations / self.operations_per_second, moved_bytes / self.bytes_per_second)
        return self.call_seconds + busy


# One core with wide vectors and its share of the memory bandwidth; gloo between processes of one host.
CPU = Device(
    operations_per_second=5e10,
    bytes_per_second=1e10,
    call_seconds=5e-6,
    link=Link(seconds=1e-4, bytes_per_second=1e9),
)
# A data-centre GPU in fp32; NCCL over the links inside a host.
CUDA = Device(
    operations_per_second=1e13,
    bytes_per_second=8e11,
    call_seconds=5e-6,
    link=Link(seconds=2e-5, bytes_per_second=2.5e10),
)
