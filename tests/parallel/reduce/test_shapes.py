"""1,000 random buffers of every type, size and order: the same bits on all ranks and in all cores, close to fp64."""

import hashlib

import numpy as np
import pytest

from herringbone_parallel.reduce.elements import Element, narrow, widen
from tests.parallel.reduce.conftest import KINDS

LAYOUTS = [("ab", 2), ("abc", 0), ("abcd", 2), ("aab", 1), ("aaa", 0)]
BUFFERS = 200  # x 5 layouts
# Half a unit in the last layout of each format.
ROUNDING = {Element.FLOAT32: 2**-24, Element.FLOAT16: 2**-11, Element.BFLOAT16: 2**-8, Element.FLOAT64: 2**-53}


def draw(layout, number):
    """Return the type, size, op and wire of buffer `number`."""
    rng = np.random.default_rng([LAYOUTS.index(layout), number])
    element = list(Element)[rng.integers(len(Element))]
    size = int(
        rng.choice([rng.integers(1, 64), rng.integers(64, 3_000), rng.integers(3_000, 60_000)], p=[0.3, 0.5, 0.2])
    )
    op = "average" if element.is_float and rng.random() < 0.5 else "sum"
    wire = [None, "fp16", "bf16"][rng.integers(3)] if element is Element.FLOAT32 and rng.random() < 0.4 else None
    return element, size, op, wire


def content(layout, number, rank):
    element, size, _, _ = draw(layout, number)
    rng = np.random.default_rng([LAYOUTS.index(layout), number, rank])
    if element.is_float:
        return narrow(rng.standard_normal(size).astype(element.summed), element)
    return rng.integers(0, 100, size).astype(element.stored)


def run(layout, ranks):
    """Sum all buffers on all ranks, many at once; return each rank's results."""

    def work(engine):
        buffers = [content(layout, number, engine.rank) for number in range(BUFFERS)]
        handles = []
        for number, buffer in enumerate(buffers):
            element, _, op, wire = draw(layout, number)
            handles.append(engine.all_reduce(buffer, dtype=element.name.lower(), op=op, wire=wire))
            if number % 7 == engine.rank:
                handles[-1].wait(60)  # ranks wait at different times
        for handle in reversed(handles):
            handle.wait(60)
        return buffers

    return ranks.run(work)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_any_buffer(world, layout):
    hosts, helpers = layout
    digests = set()
    for kind in KINDS:
        for results in run(layout, world(hosts, helpers, kind)):
            digests.add(hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest())
    assert len(digests) == 1, "all ranks and all cores have the same bits"
    for number, result in enumerate(results):
        element, _, op, wire = draw(layout, number)
        contributions = np.array(
            [widen(content(layout, number, rank), element).astype(np.float64) for rank in range(len(hosts))]
        )
        expected, magnitude = contributions.sum(axis=0), np.abs(contributions).sum(axis=0)
        if not element.is_float:
            np.testing.assert_array_equal(result, expected.astype(np.int64).astype(element.stored))
            continue
        divisor = len(hosts) if op == "average" else 1
        on_wire = Element.named(wire) if wire else element
        # Each addition rounds, and so does each conversion to 16 bits.
        error = len(hosts) * ROUNDING[Element.FLOAT32 if element.size < 8 else element] + 3 * ROUNDING[on_wire]
        np.testing.assert_array_less(
            np.abs(widen(result, element) - expected / divisor),
            error * magnitude / divisor + 1e-6 * (on_wire.size < 4) + 1e-300,
        )


@pytest.mark.parametrize("wire", [None, "fp16", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_nan_and_infinity_pass_through(world, kind, wire):
    def work(engine):
        data = np.ones(500, np.float32)
        if engine.rank == 1:
            data[[3, 4, 5]] = np.nan, np.inf, -np.inf
        engine.all_reduce(data, wire=wire).wait(10)
        return data

    for result in world("aab", 1, kind).run(work):
        assert np.isnan(result[3])
        assert (result[4], result[5]) == (np.inf, -np.inf)
        assert (np.delete(result, [3, 4, 5]) == 3).all()


@pytest.mark.parametrize("element", [Element.FLOAT16, Element.BFLOAT16])
def test_every_16_bit_value_survives(element):
    bits = np.arange(1 << 16, dtype=np.uint16)
    stored = bits.view(element.stored)
    back = narrow(widen(stored, element), element).view(np.uint16)
    numbers = ~np.isnan(widen(stored, element))
    np.testing.assert_array_equal(back[numbers], bits[numbers])
    assert np.isnan(widen(back[~numbers].view(element.stored), element)).all()


@pytest.mark.parametrize("hosts", ["aabb", "aab", "aaabb", "aaaaab"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "wires"),
    [("float16", (None, Element.FLOAT16)), ("float32", (Element.FLOAT16,)), ("float64", (None,))],
)
def test_an_average_of_values_in_range_is_in_range(world, hosts, kind, dtype, wires):
    """Regression: the sum over two ranks of a host was rounded to fp16, so the mean of four times 40,000 was inf."""

    def work(engine):
        data = np.full(300, 40_000, dtype)
        engine.all_reduce(data, op="average").wait(10)
        return data

    for wire in wires:
        for helpers in (0, 2):
            for result in world(hosts, helpers, kind, wire=wire).run(work):
                np.testing.assert_array_equal(result, 40_000)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("element", [Element.FLOAT16, Element.BFLOAT16])
@pytest.mark.parametrize("hosts", ["aabb", "aab", "aaa"])
def test_sums_of_16_bits_are_rounded_once(world, hosts, element, kind):
    def contribution(rank):
        return narrow(np.random.default_rng(rank).standard_normal(5_000).astype(np.float32), element)

    def work(engine):
        data = contribution(engine.rank)
        engine.all_reduce(data, dtype=element.name.lower(), op="average").wait(10)
        return data

    # The order of hosts, and of ranks inside a host.
    parts = [widen(contribution(rank), element) for rank in range(len(hosts))]
    host_sums = [sum(parts[rank] for rank in range(len(hosts)) if hosts[rank] == host) for host in sorted(set(hosts))]
    expected = narrow((sum(host_sums) / np.float32(len(hosts))).astype(np.float32), element)
    for helpers in (0, 1):
        for result in world(hosts, helpers, kind).run(work):
            np.testing.assert_array_equal(result, expected)
