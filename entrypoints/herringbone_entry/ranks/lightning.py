"""Print a notice where Lightning's `Trainer` connects fewer ranks than the job has.

Without `num_nodes` it takes one host for the whole job: the ranks of each host train a model of their own.
"""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any


def watch(module: ModuleType) -> None:
    """Make the `Trainer` of a module of Lightning's compare its ranks with the job's."""
    construct = module.Trainer.__init__

    @functools.wraps(construct)
    def __init__(trainer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        construct(trainer, *args, **kwargs)
        text = notice(getattr(trainer, "world_size", 0), dict(os.environ))
        if text and os.environ.get("LOCAL_RANK") == "0":
            print(text, file=sys.stderr, flush=True)

    module.Trainer.__init__ = __init__


def notice(connected: int, environment: dict[str, str]) -> str:
    """Return the notice for a `Trainer` that connects so many ranks; "" where they are all of the job's.

    >>> notice(2, {"WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"})[:61]
    'herringbone: Lightning connects 2 of the 4 ranks of this job '
    >>> notice(4, {"WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"})
    ''
    """
    ranks, hosts = int(environment.get("WORLD_SIZE", "1")), environment.get("GROUP_WORLD_SIZE", "1")
    if connected in (0, ranks):
        return ""
    return (
        f"herringbone: Lightning connects {connected} of the {ranks} ranks of this job, so several models are trained"
        f" apart: give Trainer(num_nodes={hosts}, devices={ranks // int(hosts)})"
    )
