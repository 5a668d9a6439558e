"""Values that another process sent: those that no process of ours sends are refused before they are used."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores import messages
from herringbone_parallel.reduce.cores.messages import Header, Kind
from herringbone_parallel.reduce.elements import Element
from herringbone_parallel.reduce.join import wire_values
from herringbone_parallel.reduce.join.lane_hello import LaneHello
from herringbone_parallel.reduce.join.rendezvous import RankInfo
from tests.parallel.reduce.hellos import HELLO, INFO


def test_the_usages() -> None:
    for module in (messages, wire_values):
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ring": 0}, "ring is 0"),
        ({"ring": 1 << 32}, "ring is 4294967296"),
        ({"ring": 4095}, "chunk_bytes is 4096: it is a number from 1 to 4095"),
        ({"chunk_bytes": 0}, "chunk_bytes is 0"),
        ({"chunk_bytes": 4096.0}, "chunk_bytes is 4096.0"),
        ({"most": 0}, "most is 0"),
        ({"most": 1 << 32 | 1}, "most is 4294967297"),
        ({"members": 0}, "members is 0"),
        ({"members": 1_000_000_000}, "members is 1000000000"),
        ({"members": True}, "members is True"),
        ({"member": 1}, "member is 1: it is a number from 0 to 0"),
        ({"member": -1}, "member is -1"),
        ({"lane": 1e999}, "lane is inf"),
        ({"lane": "0"}, "lane is '0'"),
        ({"server": None}, "server is NoneType"),
        ({"silence": float("nan")}, "silence is nan"),
        ({"late": 0}, "late is 0"),
        ({"join_timeout": 1e300}, r"join_timeout is 1e\+300"),
        ({"label": "\ud800"}, "label is"),
        ({"label": "a\x1b[2J"}, "label is"),
        ({"session": ["1f"]}, "session is list"),
        ({"session": "x" * 10_000}, "session is str"),
        ({"fabric": [1]}, "the offer of a rail is list"),
    ],
    ids=str,
)
def test_numbers_that_no_rank_sends_are_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ParallelError, match=named):
        LaneHello.of({**HELLO, **change})


def test_the_info_of_a_rank() -> None:
    assert RankInfo.of(INFO) == RankInfo(0, 2, "a", (("10.0.0.5", 7601),), "/tmp/s", {}, None)


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 2},
        {"rank": -1},
        {"size": 10**9},
        {"size": 2.0},
        {"host": "a\nb"},
        {"addresses": []},
        {"addresses": [["10.0.0.5", 0]]},
        {"addresses": [["10.0.0.5"]]},
        {"addresses": {"10.0.0.5": 1}},
        {"agreed": []},
        {"job_rank": "0"},
    ],
    ids=str,
)
def test_the_info_of_a_rank_that_no_rank_sends(change: dict[str, Any]) -> None:
    with pytest.raises((ParallelError, ValueError)):
        RankInfo.of({**INFO, **change})


F32, F16, I32 = Element.FLOAT32, Element.FLOAT16, Element.INT32


@pytest.mark.parametrize(
    ("header", "local", "expected"),
    [
        (Header(Kind.PUSH, F32, F32, 256, elements=64, divisor=2), False, True),
        (Header(Kind.PUSH, F32, F32, 0, elements=64, divisor=2), True, True),
        (Header(Kind.PUSH, F32, F32, 4, elements=0x40000001, divisor=2), False, False),
        (Header(Kind.PUSH, F32, F32, 0, elements=64, divisor=2), False, False),
        (Header(Kind.PUSH, F32, F32, 0, elements=0, divisor=2), False, False),
        (Header(Kind.PUSH, F32, F32, 256, elements=64, divisor=2), True, False),
        # The host's sum of 16 bits travels as fp32, and its sum comes back in 16 bits.
        (Header(Kind.PUSH, F16, F32, 256, elements=64, divisor=2), False, True),
        (Header(Kind.SUM, F16, F32, 128, elements=64, divisor=2), False, True),
        (Header(Kind.SUM, F16, F32, 256, elements=64, divisor=2), False, False),
        (Header(Kind.SUM, F32, F16, 128, elements=64, divisor=2), False, True),
        (Header(Kind.PUSH, F16, Element.BFLOAT16, 128, elements=64, divisor=2), False, False),
        (Header(Kind.PUSH, I32, F32, 256, elements=64, divisor=1), False, False),
        (Header(Kind.PUSH, I32, I32, 256, elements=64, divisor=2), False, False),
        (Header(Kind.PUSH, I32, I32, 256, elements=64, divisor=1), False, True),
        (Header(Kind.PUSH, 8, 8, 64, elements=64, divisor=1), False, False),
        (Header(Kind.PUSH, F32, F32, 256, elements=64, divisor=float("nan")), False, False),
        (Header(Kind.PUSH, F32, F32, 256, elements=64, divisor=0), False, False),
        (Header(Kind.ALIVE), False, True),
        (Header(Kind.ALIVE, length=1), True, False),
        (Header(Kind.LEAVE, sequence=2**64 - 1), False, True),
        (Header(Kind.ABORT, length=65536), False, True),
        (Header(Kind.ABORT, length=65537), False, False),
        (Header(0), False, False),
        (Header(7), False, False),
    ],
    ids=str,
)
def test_headers_whose_sizes_fit_each_other(header: Header, local: bool, expected: bool) -> None:
    assert header.is_well_formed(local=local) is expected
