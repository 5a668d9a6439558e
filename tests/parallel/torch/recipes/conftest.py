from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.parallel.torch.ranks import Ranks


@pytest.fixture(scope="package")
def ranks() -> Iterator[Ranks]:
    pool = Ranks()
    yield pool
    pool.close()
