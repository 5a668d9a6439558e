from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.parallel.torch.data_parallel.ranks import JobRanks


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobRanks]:
    """Two ranks of one host."""
    ranks = JobRanks(2, tmp_path_factory.mktemp("job"))
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobRanks]:
    """A job of one rank."""
    ranks = JobRanks(1, tmp_path_factory.mktemp("lone"))
    yield ranks
    ranks.close()
