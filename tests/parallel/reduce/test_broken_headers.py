"""The short form of `tests/campaigns/reduce_headers.py`; `test_native.py` has that of the native core."""

from __future__ import annotations

from tests.campaigns import reduce_headers


def test_the_python_core_refuses_broken_headers() -> None:
    counts = reduce_headers.python_core(1_500, seed=1)
    assert counts["headers"] >= 1_500
    # Most connections begin with messages that are in order, or the sums behind the checks would not be reached.
    assert counts["chunks"] > 100


def test_broken_hellos_are_refused() -> None:
    counts = reduce_headers.hellos(5_000, seed=1)
    assert 4_000 < counts["refused"] < 5_000
