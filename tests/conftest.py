"""What tests of every room may need: a container engine, and an image to run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from herringbone.images.engine import connect
from herringbone.images.find import find
from herringbone_spec.errors import HerringboneError


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """The container engine of this machine; tests that need one (mark `docker`) are skipped where none answers."""
    try:
        client = connect()
    except HerringboneError as error:
        pytest.skip(str(error))
    yield client
    client.close()


@pytest.fixture(scope="session")
def image(engine: Any) -> str:
    """The image to run: HERRINGBONE_TEST_IMAGE, else the newest that `herringbone images build` made."""
    found = os.environ.get("HERRINGBONE_TEST_IMAGE") or find(engine, framework="pytorch", device="cpu")
    if found is None:
        pytest.skip("no image: run `herringbone images build pytorch`, or set HERRINGBONE_TEST_IMAGE")
    return found
