from __future__ import annotations

import doctest

from herringbone_parallel.core import buckets
from herringbone_parallel.core.buckets import cut_buckets


def test_the_usage() -> None:
    assert doctest.testmod(buckets) == (0, 1)


def test_the_first_bucket_is_small_and_the_last_takes_what_is_left() -> None:
    tensors = [("f", 4)] * 7
    assert cut_buckets(tensors, first_bytes=4, most_bytes=12) == [[0], [1, 2, 3], [4, 5, 6]]
    assert cut_buckets(tensors[:6], first_bytes=4, most_bytes=12) == [[0], [1, 2, 3], [4, 5]]


def test_a_tensor_larger_than_a_bucket_closes_it() -> None:
    assert cut_buckets([("f", 1), ("f", 100), ("f", 1)], first_bytes=2, most_bytes=10) == [[0, 1], [2]]


def test_kinds_do_not_mix_and_buckets_stand_in_the_order_in_which_they_are_complete() -> None:
    tensors = [("f", 1), ("h", 1), ("h", 1), ("f", 1)]
    assert cut_buckets(tensors, first_bytes=2, most_bytes=2) == [[1, 2], [0, 3]]


def test_no_tensors_make_no_buckets() -> None:
    assert cut_buckets([], first_bytes=1, most_bytes=1) == []
