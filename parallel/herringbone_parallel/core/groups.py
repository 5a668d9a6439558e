"""The sets of ranks that a rank belongs to, and what a rank's number counts in, under SMP v1's names."""

from __future__ import annotations

from enum import Enum


class CommGroup(Enum):
    """A set of ranks that this rank belongs to; the value names the axes of the grid along which its ranks differ."""

    WORLD = "DPT"
    MP_GROUP = "PT"
    DP_GROUP = "DT"
    PP_GROUP = "P"
    TP_GROUP = "T"
    RDP_GROUP = "D"


class RankType(Enum):
    """What a rank's number counts in; the value is the group in which it is an index."""

    WORLD_RANK = CommGroup.WORLD
    MP_RANK = CommGroup.MP_GROUP
    DP_RANK = CommGroup.DP_GROUP
    PP_RANK = CommGroup.PP_GROUP
    TP_RANK = CommGroup.TP_GROUP
    RDP_RANK = CommGroup.RDP_GROUP


WORLD = CommGroup.WORLD
MP_GROUP = CommGroup.MP_GROUP
DP_GROUP = CommGroup.DP_GROUP
PP_GROUP = CommGroup.PP_GROUP
TP_GROUP = CommGroup.TP_GROUP
RDP_GROUP = CommGroup.RDP_GROUP
