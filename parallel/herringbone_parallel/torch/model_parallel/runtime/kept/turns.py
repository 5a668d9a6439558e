"""The turns of microbatches, which depend on what the code keeps."""

from __future__ import annotations

import enum


class Turns(enum.IntEnum):
    """The order in which the microbatches of a step take turns on a rank."""

    FREE = 0  # as the schedule says: the code keeps nothing
    PHASES = 1  # one forward after another, one backward after another: forwards keep what they or backwards read
    WHOLE = 2  # one microbatch after another: a forward reads what a backward has kept
