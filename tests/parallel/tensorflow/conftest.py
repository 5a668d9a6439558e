from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.parallel.tensorflow.ranks import Ranks


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    pool = Ranks(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.end()
