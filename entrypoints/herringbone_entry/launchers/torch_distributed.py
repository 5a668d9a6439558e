"""`torch_distributed`: the variables that torchrun would have set, without torchrun.

The reason is in docs/decisions/002-torchrun-without-torchrun.md. Source of the names and values: PyTorch's "torchrun
(Elastic Launch)" page; a test compares them with torchrun's own.
"""

from __future__ import annotations

from herringbone_contract.layout import RankPlacement

ROLE = "default"


def environment(placement: RankPlacement, *, run_id: str) -> dict[str, str]:
    """Return what torchrun adds to the common variables of a rank."""
    return {
        "GROUP_WORLD_SIZE": str(placement.num_hosts),
        "ROLE_RANK": str(placement.rank),
        "ROLE_WORLD_SIZE": str(placement.world_size),
        "ROLE_NAME": ROLE,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": run_id,
        # Rank 0 hosts the rendezvous store: torchrun's agent, which would host it, does not exist here.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
