"""The collectives that are built from sums of integers: broadcast, gather, barrier, agreement."""

import numpy as np
import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.collectives import agree, all_gather, barrier, broadcast


def test_a_broadcast_keeps_every_bit(world):
    given = np.array([np.nan, -0.0, np.inf, 1e-310], np.float64)

    def work(engine):
        array = given.copy() if engine.rank == 2 else np.full(4, 7.0)
        broadcast(engine, array, root=2, timeout=10)
        return array.tobytes()

    assert world("aab", helpers=1).run(work) == [given.tobytes()] * 3


def test_gather_takes_another_length_from_each(world):
    ranks = world("abc")
    assert ranks.run(lambda engine: all_gather(engine, b"x" * engine.rank, 10)) == [[b"", b"x", b"xx"]] * 3
    ranks.run(lambda engine: barrier(engine, 10))


def test_ranks_that_differ_are_named_on_all(world):
    def work(engine):
        agree(engine, "the weather", "fine", 10)
        with pytest.raises(ParallelError) as caught:
            agree(engine, "the parameters", f"conv 3x3\nlinear {engine.rank // 2}", 10)
        return str(caught.value)

    (message,) = set(world("aab").run(work))
    assert message == (
        "ranks disagree on the parameters: at position 1, rank 0 on a has 'linear 0' and rank 2 on b has 'linear 1'"
    )


def test_a_root_that_is_no_rank(world):
    with pytest.raises(ParallelError, match="ranks are 0 to 0"):
        broadcast(world("a").engines[0], np.zeros(1), root=1)
