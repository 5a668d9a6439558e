"""Objects between ranks: equal on all of them, and unpickled only if a rank of the job has sealed them."""

from __future__ import annotations

import doctest
import pickle

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce import objects
from herringbone_parallel.reduce.objects import Seal, all_gather_objects, broadcast_object


def test_the_usage() -> None:
    assert doctest.testmod(objects).failed == 0


def test_objects_reach_all_ranks(world) -> None:
    def work(engine):
        return [
            all_gather_objects(engine, ("rank", engine.rank)),
            broadcast_object(engine, {"from": engine.rank}, 1),
            all_gather_objects(engine, "x" * engine.rank),
        ]

    expected = [[("rank", rank) for rank in range(3)], {"from": 1}, ["", "x", "xx"]]
    assert world("aab").run(work) == [expected] * 3


class Bomb:
    """An object whose unpickling runs code."""

    def __reduce__(self):
        return (pytest.fail, ("foreign bytes were unpickled",))


def test_foreign_bytes_are_not_unpickled() -> None:
    ours, theirs = Seal(b"key"), Seal(b"key")
    sealed = ours.seal({"epoch": 1}, rank=0)
    assert theirs.open(sealed, rank=0) == {"epoch": 1}
    foreign = [
        sealed[:32] + pickle.dumps(Bomb()),
        pickle.dumps(Bomb()),
        b"",
        Seal(b"other").seal(Bomb(), rank=0),
        ours.seal(Bomb(), rank=1),
    ]
    for data in foreign:
        with pytest.raises(ParallelError, match="the object of rank 0 was changed on its way"):
            theirs.open(data, rank=0)
    # An object of an earlier call.
    theirs.number += 1
    with pytest.raises(ParallelError, match="changed on its way"):
        theirs.open(sealed, rank=0)
