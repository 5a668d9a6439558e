"""A fixture that imports the examples' modules as a job's script does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], ModuleType]]:
    """Import modules, as in `module("resnet_imagenet/src", "images")`. Unload all modules of examples afterwards."""
    before = set(sys.modules)

    def load(folder: str, name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.syspath_prepend(str(EXAMPLES / folder))
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if str(EXAMPLES) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
