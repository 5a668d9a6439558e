"""The phases that a microbatch passes through on one rank, in this order."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """A phase of one microbatch; a later phase compares greater.

    The lower-case name of a phase is its name in `core.pipeline.schedule` and in trace files.
    """

    # No thread runs the microbatch yet.
    FRESH = 0
    FORWARD = 1
    BACKWARD = 2
    # Gradients of parameters that a `zero_bubble` backward has put off.
    WEIGHT = 3
    ENDED = 4
