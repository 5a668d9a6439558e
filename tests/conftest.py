"""What tests of every room may need: a container engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from herringbone.images.engine import connect
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
