"""Lives of the gradients of a weight that the first and the last module share."""

from __future__ import annotations

import numpy as np
import pytest

from herringbone_parallel.core.prediction.measurement import (
    Call,
    Kind,
    Measurement,
    Module,
    Operation,
    Parameter,
    Phase,
    Tensor,
)
from herringbone_parallel.core.prediction.stages import Partition
from herringbone_parallel.core.prediction.tied import TiedGradients
from herringbone_parallel.core.prediction.timeline import Timeline

EMBED, BODY, HEAD = 1, 2, 3
MM, ADD = 0, 1
GRADIENT, TEMPORARY = Kind.GRADIENT, Kind.TEMPORARY
# The backward comes to the head, the body, and the embedding, which adds. The rank of the first partition has the
# weight of head and embedding.
HOMES = (0, 0, 1, 0)


def step(tensors: list[tuple[Kind, int, int, int]], calls: list[tuple[int, int]]) -> Measurement:
    """Return backwards of `calls` (operation, module); tensors are kind, birth, end and module, each of 100 bytes."""
    return Measurement(
        framework="torch",
        device="cpu",
        modules=tuple(Module(path, "Linear") for path in ("", "embed", "body", "head")),
        parameters=(
            Parameter("embed.weight", EMBED, (25,), "float32", 100, shared_by=(HEAD,)),
            Parameter("body.weight", BODY, (50,), "float32", 200),
        ),
        operations=(
            Operation("aten.mm.default", (), "float32", 1, 1),
            Operation("aten.add.Tensor", (), "float32", 1, 1),
        ),
        calls=tuple(Call(operation, module, Phase.BACKWARD) for operation, module in calls),
        tensors=tuple(Tensor(100, kind, born, freed, module) for kind, born, freed, module in tensors),
    )


def partition(measurement: Measurement, homes: tuple[int, ...] = HOMES) -> Partition:
    """Return two partitions, of which `homes` has the one of each module."""
    return Partition(
        count=2,
        modules=np.array(homes),
        parameters=np.array([homes[EMBED], homes[BODY]]),
        calls=np.array([homes[call.module] for call in measurement.calls]),
    )


def lives(measurement: Measurement, homes: tuple[int, ...] = HOMES) -> list[tuple[int, int]]:
    """Return the first slot of each tensor and the one after its last."""
    timeline = Timeline(measurement)
    changed = TiedGradients(measurement).lives(timeline.start, timeline.end, partition(measurement, homes))
    return list(zip(*(slots.tolist() for slots in changed), strict=True))


# moment   0 head  1 body  2 embedding  3 sum  4 its first use
CALLS = [(MM, HEAD), (MM, BODY), (MM, EMBED), (ADD, EMBED), (MM, EMBED)]
FIRST = [(TEMPORARY, 0, 4, HEAD), (TEMPORARY, 2, 4, EMBED), (GRADIENT, 3, -1, EMBED)]
LATER = [(TEMPORARY, 0, 4, HEAD), (TEMPORARY, 2, 4, EMBED), (TEMPORARY, 3, 5, EMBED)]


def test_the_heads_part_is_the_gradient_from_the_end_of_its_visit_on() -> None:
    # Of 12 slots: during and after 5 calls, and 2 after the step.
    assert lives(step(FIRST, CALLS)) == [(0, 1), (4, 7), (1, 12)]


def test_a_later_backward_makes_no_sum_of_two_visits() -> None:
    # The embedding's part is there until it is added to `grad`; the sum lives in no slot.
    assert lives(step(LATER, CALLS)) == [(0, 1), (4, 7), (6, 6)]


@pytest.mark.parametrize("tensors", [FIRST, LATER])
def test_parts_of_one_visit_wait_for_each_other_as_measured(tensors: list[tuple[Kind, int, int, int]]) -> None:
    measurement = step(tensors, CALLS)
    timeline = Timeline(measurement)
    assert lives(measurement, (0, 0, 0, 0)) == list(zip(timeline.start.tolist(), timeline.end.tolist(), strict=True))


def test_a_weight_of_three_uses_ends_at_each_border() -> None:
    # As in T5: the head, the decoder's embedding, and the encoder's, in a visit each.
    calls = [(MM, HEAD), (MM, BODY), (MM, EMBED), (ADD, EMBED), (MM, BODY), (MM, EMBED), (ADD, EMBED), (MM, EMBED)]
    tensors = [
        (TEMPORARY, 0, 4, HEAD),
        (TEMPORARY, 2, 4, EMBED),
        (TEMPORARY, 3, 7, EMBED),
        (TEMPORARY, 5, 7, EMBED),
        (GRADIENT, 6, -1, EMBED),
    ]
    assert lives(step(tensors, calls)) == [(0, 1), (4, 7), (6, 6), (10, 13), (1, 18)]


def test_the_peak_of_a_rank_has_one_part_next_to_the_gradient() -> None:
    measurement = step(FIRST, CALLS)
    curves = Timeline(measurement).curves(partition(measurement), 0, first_microbatch=True)
    assert (curves.fixed + curves.gradients).tolist() == [100, 100, 100, 100, 200, 200, 200, 100, 100, 100, 100, 100]
    # A later backward adds the head's part to the gradient at the end of its visit.
    assert curves.made_again.tolist() == [0, 100, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0]
