"""`torch_distributed`: ranks that find what torchrun would have given them, without torchrun.

Why without: docs/decisions/002-torchrun-without-torchrun.md. Source of the names and values: PyTorch's "torchrun
(Elastic Launch)" page; a test compares them with the real one.
"""

from __future__ import annotations

from collections.abc import Mapping

from herringbone_entry.ranks.layout import Place

ROLE = "default"


def environment(place: Place, *, run_id: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun adds to the common variables of a rank.

    One thread per rank where several share the host, unless the user has said otherwise in `inherited`.
    """
    values = {
        "GROUP_WORLD_SIZE": str(place.num_hosts),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "ROLE_NAME": ROLE,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": run_id,
        # The rendezvous store is rank 0's own: there is no agent that could keep it.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    if place.num_local > 1 and "OMP_NUM_THREADS" not in inherited:
        values["OMP_NUM_THREADS"] = "1"
    return values
