"""The examples in the docstrings are correct."""

import doctest
import importlib
import pkgutil

import pytest

import herringbone
from herringbone.plan.destinations import TRACKERS

# Each imports the package of its tracker, which is in a venv of its own (tests/trackers).
_TRACKERS = {f"herringbone.trackers.{name}" for name in TRACKERS}
MODULES = [
    module.name
    for module in pkgutil.walk_packages(herringbone.__path__, "herringbone.")
    if module.name not in _TRACKERS
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    assert doctest.testmod(importlib.import_module(name), optionflags=flags).failed == 0
