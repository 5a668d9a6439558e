"""The usages in the docstrings of the partitioner are true."""

from __future__ import annotations

import doctest
import importlib

import pytest

ROOMS = ("costs", "partition_chain", "partition_exhaustive", "work")


@pytest.mark.parametrize("room", ROOMS)
def test_usages(room):
    results = doctest.testmod(importlib.import_module(f"herringbone_parallel.core.{room}"))
    assert (results.failed, results.attempted > 0) == (0, True)
