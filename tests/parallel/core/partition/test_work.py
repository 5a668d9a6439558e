from __future__ import annotations

import pytest

from herringbone_parallel.core.partition.costs import Link
from herringbone_parallel.core.partition.work import Device

DEVICE = Device(
    operations_per_second=1e9, bytes_per_second=1e8, call_seconds=1e-6, link=Link(seconds=0.0, bytes_per_second=1.0)
)


@pytest.mark.parametrize(
    ("operations", "moved", "seconds"),
    [(0, 0, 1e-6), (2_000, 100, 3e-6), (1_000, 1_000, 11e-6)],
    ids=["starting it", "computing", "reading and writing"],
)
def test_the_slower_of_arithmetic_and_memory_decides(operations: int, moved: int, seconds: float) -> None:
    assert DEVICE.seconds(operations, moved) == pytest.approx(seconds)
