"""Buckets of gradients: offsets, shapes, and the reuse of memory."""

from __future__ import annotations

import numpy as np

from herringbone_parallel.core.sums.links import Cost
from herringbone_parallel.reduce.fused import Bucket, Spec, cut

SPECS = [Spec("a", "float32", (2, 3)), Spec("b", "float32", ()), Spec("c", "float16", (5,)), Spec("d", "float32", (0,))]
DTYPES = [np.dtype(spec.dtype) for spec in SPECS]


def test_gradients_come_back_in_their_shapes_and_each_starts_a_cache_line() -> None:
    bucket = Bucket([1, 0, 3], SPECS, DTYPES[0])
    given = [np.float32(7).reshape(()), np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(0, np.float32)]
    flat = bucket.fill(given)
    assert flat.size == bucket.count == 32
    flat *= 2
    pieces = bucket.pieces(flat)
    for piece, gradient in zip(pieces, given, strict=True):
        np.testing.assert_array_equal(piece, gradient * 2)
    assert [piece.ctypes.data % 64 for piece in pieces[:2]] == [0, 0]
    # Gaps between gradients are zero, however often the buffer is summed.
    assert flat.sum() == 2 * (7 + 15)


def test_memory_is_used_again_once_nobody_holds_a_piece_of_it() -> None:
    bucket = Bucket([0], SPECS, DTYPES[0])
    gradient = np.ones((2, 3), np.float32)
    held = bucket.pieces(bucket.fill([gradient]))
    one = bucket.allocated_bytes
    other = bucket.fill([gradient * 5])
    assert held[0].tolist() == [[1.0] * 3] * 2
    assert bucket.allocated_bytes == 2 * one
    del held, other
    for _ in range(10):
        bucket.pieces(bucket.fill([gradient]))
    assert bucket.allocated_bytes == 2 * one


def test_buckets_are_of_one_type_and_of_the_size_that_is_asked_for() -> None:
    cost = Cost(alpha_s=1e-3, beta_s=1e-8)
    assert [bucket.members for bucket in cut(SPECS, DTYPES, [3, 2, 1, 0], cost=cost)] == [(2,), (3, 1, 0)]
    asked = cut(SPECS, DTYPES, [3, 2, 1, 0], cost=cost, most_bytes=4)
    assert [bucket.members for bucket in asked] == [(2,), (3, 1), (0,)]
    assert [bucket.element for bucket in asked] == ["float16", "float32", "float32"]
    assert cut([], [], [], cost=cost) == []


def test_where_a_message_costs_nothing_each_gradient_leaves_at_once() -> None:
    specs = [Spec(str(number), "float32", (100,)) for number in range(4)]
    buckets = cut(specs, [np.dtype(np.float32)] * 4, [3, 2, 1, 0], cost=Cost(alpha_s=0, beta_s=1e-8))
    assert [bucket.members for bucket in buckets] == [(3,), (2,), (1,), (0,)]
