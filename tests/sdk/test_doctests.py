"""The examples in the docstrings are correct."""

import doctest
import importlib
import pkgutil

import pytest

import herringbone

MODULES = [module.name for module in pkgutil.walk_packages(herringbone.__path__, "herringbone.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    assert doctest.testmod(importlib.import_module(name), optionflags=flags).failed == 0
