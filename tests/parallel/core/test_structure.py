from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

from herringbone_parallel.core.structure import leaves_of, rebuild, replace_leaves


@dataclass(frozen=True)
class Point:
    x: int
    rest: list[int]


Pair = namedtuple("Pair", "left right")


class Output(OrderedDict):  # type: ignore[type-arg]
    """A dict with attributes of its own, like the output classes of model libraries."""


def test_every_container_comes_back_as_its_own_type() -> None:
    output = Output(a=1)
    output.note = "kept"
    value = {"p": Point(1, [2, 3]), "t": (4, None), "n": Pair(5, output)}
    assert leaves_of(value) == [1, 2, 3, 4, None, 5, 1]
    changed = replace_leaves(value, lambda leaf: leaf and leaf + 10)
    assert changed == {"p": Point(11, [12, 13]), "t": (14, None), "n": Pair(15, Output(a=11))}
    assert changed["n"].right.note == "kept"
    assert value["n"].right == Output(a=1), "the original stays as it was"


def test_rebuild_undoes_leaves_of() -> None:
    value = [(1, 2), {"k": [3]}]
    assert rebuild(value, leaves_of(value)) == value
