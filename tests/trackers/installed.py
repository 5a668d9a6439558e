"""Packages of trackers that are installed and never imported: exporters are processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, *packages: str) -> None:
    for name in packages:
        (folder / "site" / name).mkdir(parents=True)
        (folder / "site" / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(folder / "site")
