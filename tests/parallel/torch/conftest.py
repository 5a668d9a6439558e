from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.parallel.torch.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    # On a machine with GPUs, too: tests/gpu has the tests of those.
    pool = Ranks(CUDA_VISIBLE_DEVICES="")
    yield pool
    pool.close()
