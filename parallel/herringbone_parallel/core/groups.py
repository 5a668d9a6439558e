"""Names the groups of ranks and the kinds of rank numbers as SMP v1 does."""

from __future__ import annotations

from enum import Enum


class CommGroup(Enum):
    """A group of ranks; its value names the axes of the grid along which the ranks of the group differ."""

    WORLD = "DPT"
    MP_GROUP = "PT"
    DP_GROUP = "DT"
    PP_GROUP = "P"
    TP_GROUP = "T"
    RDP_GROUP = "D"


class RankType(Enum):
    """A kind of rank number; its value is the group in which the number is an index."""

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
