"""The package as a whole: the cost of an import, its examples, and its public names."""

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import herringbone_contract
import herringbone_contract.distribution
from herringbone_contract import errors

MODULES = [f"herringbone_contract.{module.name}" for module in pkgutil.iter_modules(herringbone_contract.__path__)]


def loaded_by(statement):
    """Return the modules that a statement loads in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_a_rank_pays_for_no_more_than_the_standard_library():
    """Import without msgspec those modules that every rank imports at its start."""
    loaded = loaded_by("from herringbone_contract import constants, errors, failure, resources")
    assert "herringbone_contract.constants" in loaded
    assert not any(name.partition(".")[0] == "msgspec" for name in loaded)


def test_the_grammar_imports_msgspec_alone():
    msgspec_modules, grammar_modules = (
        loaded_by("import msgspec"),
        loaded_by("import herringbone_contract.distribution"),
    )
    foreign = {name.partition(".")[0] for name in grammar_modules - msgspec_modules} - sys.stdlib_module_names
    assert foreign == {"herringbone_contract"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    # Examples may write files.
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_public_names_of_the_grammar_are_all_listed():
    module = herringbone_contract.distribution
    assert all(hasattr(module, name) for name in module.__all__)
    defined = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    assert defined <= set(module.__all__)


def test_the_error_tree_is_the_one_drawn():
    for name, error in vars(errors).items():
        if inspect.isclass(error) and issubclass(error, Exception):
            assert issubclass(error, errors.HerringboneError)
            assert name in errors.__doc__
    assert issubclass(errors.DistributionError, ValueError)  # code written for AWS's SDK catches ValueError
    assert issubclass(errors.JobNotFoundError, LookupError)
