"""Engines over a part of a job's ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.collectives import agree
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.subsets import join_subset


@pytest.mark.parametrize("helpers", [0, 1])
def test_parts_sum_for_themselves_and_call_ranks_as_the_job_does(world: Callable[..., Any], helpers: int) -> None:
    def work(engine: Engine) -> Any:
        with join_subset(engine, [[0, 2], [3, 1]][engine.rank % 2]) as part:
            array = np.full(1000, float(engine.rank), np.float32)
            part.all_reduce(array).wait()
            try:
                agree(part, "the shoes", str(part.rank))
            except ParallelError as error:
                return part.rank, part.size, set(array.tolist()), str(error)

    results = world(["a", "a", "b", "b"], helpers).run(work)
    assert [(rank, size, sums) for rank, size, sums, _ in results] == [
        (0, 2, {2.0}),
        (1, 2, {4.0}),
        (1, 2, {2.0}),
        (0, 2, {4.0}),
    ]
    assert "rank 0 on a has '0' and rank 2 on b has '1'" in results[0][3]
    assert "rank 3 on b has '0' and rank 1 on a has '1'" in results[1][3]
