"""The examples in the docstrings of the partitioner run."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ("costs", "chain", "exhaustive", "work")


@pytest.mark.parametrize("module", MODULES)
def test_doctests(module):
    results = doctest.testmod(importlib.import_module(f"herringbone_parallel.core.partition.{module}"))
    assert (results.failed, results.attempted > 0) == (0, True)
