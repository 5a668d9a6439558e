"""Carried wheels: versions, and a folder without them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.gpu import wheels


@pytest.mark.parametrize(
    ("installed", "least", "expected"),
    [
        ("8.2", "8.2", False),
        ("8.2.0", "8.2", False),
        ("8.1.9", "8.2", True),
        ("10.0", "9.9", False),
        ("8.2rc1", "8.2", False),
        ("2.13.0+cu130", "2.13.1", True),
    ],
)
def test_versions_are_compared_by_number(installed: str, least: str, expected: bool) -> None:
    assert wheels.is_older(installed, least) is expected


def test_missing_packages_are_those_that_are_not_there_or_too_old() -> None:
    assert wheels.missing({"msgspec": "0.1", "pytest": "999.0", "no-such-package": "1.0"}) == [
        "pytest",
        "no-such-package",
    ]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(wheels.WheelsError) as refusal:
        wheels.install(["msgspec"], tmp_path / "site", tmp_path)
    assert str(refusal.value) == (
        f"this Python ({sys.executable}) lacks msgspec, and {tmp_path} has no wheels: run `scripts/gpu --carry` on a"
        " machine with network, and take the folder along"
    )
