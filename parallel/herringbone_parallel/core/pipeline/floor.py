"""Computes seconds that a pipeline's step does not go below, whatever its schedule.

    least_step_s(stages, microbatches=8, pipeline="interleaved", link=Link())

A rank can begin when the first microbatch has come to it, and then has all its work to do. After its last backward, the
gradient of that microbatch still passes the segments before:

    rank 0   F0 F1 F2 F3          ...          B3
    rank 1      F0 F1 F2 F3       ...       B3
    rank 2         F0 B0 F1 B1 F2 B2 F3 B3
            <-----><----------------------><------>
            before    the work of rank 2     after
"""

from __future__ import annotations

from collections.abc import Sequence

from herringbone_parallel.core.pipeline.schedule import PHASES, WEIGHT
from herringbone_parallel.core.pipeline.simulate import Link, Segment

# Sums in another order than the simulator's may be larger by rounding.
_ROUNDING = 1e-9


def least_step_s(program: Sequence[Segment], *, microbatches: int, pipeline: str, link: Link) -> float:
    """Return seconds below which `simulate` does not go for `microbatches` of one program, with a backward.

    >>> stages = [Segment(rank, forward_s=1, backward_s=1) for rank in range(2)]
    >>> round(least_step_s(stages, microbatches=3, pipeline="interleaved", link=Link()), 6)
    8.0

    It costs one look at each segment. Ranks that share cores are only slower.
    """
    split = WEIGHT in PHASES[pipeline]
    work: dict[int, float] = {}
    around: dict[int, tuple[float, float]] = {}
    before = after = 0.0
    for index, segment in enumerate(program):
        if segment.rank not in around:
            around[segment.rank] = before, after
        work[segment.rank] = work.get(segment.rank, 0.0) + segment.forward_s + segment.backward_s
        following = program[index + 1].rank if index + 1 < len(program) else segment.rank
        message_s = 0.0 if following == segment.rank else link.latency_s + segment.sent_bytes / link.bytes_per_s
        before += segment.forward_s + message_s
        after += segment.backward_s - (segment.weight_s if split else 0.0) + message_s
    floors = [before + after]
    for rank, (ahead, behind) in around.items():
        own = microbatches * work[rank]
        if split:
            # Weight phases may come after the last backward, while others have the rest of the way.
            own_weights = microbatches * sum(segment.weight_s for segment in program if segment.rank == rank)
            floors += [ahead + own, ahead + own - own_weights + behind]
        else:
            floors.append(ahead + own + behind)
    return max(floors) * (1 - _ROUNDING)
