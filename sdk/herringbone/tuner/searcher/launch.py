"""Start the detached process that searches: `python -m herringbone.api.tuning NAME < order`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from herringbone.records.home import HOME_VARIABLE, Home
from herringbone.system.detached_process import hand_over, start_detached
from herringbone.system.processes import identity
from herringbone_contract.errors import LaunchError

if TYPE_CHECKING:
    from herringbone.plan.request import JobRequest
    from herringbone.tuner.store import TuningStore

# The program stands above this room: it plans trials.
SEARCHER = (sys.executable, "-m", "herringbone.api.tuning")


def start_searcher(
    store: TuningStore, home: Home, request: JobRequest, *, command: Sequence[str] = SEARCHER
) -> str | None:
    """Start a searcher, hand it the request that the trials share, and return its identity.

    The request has the user's secrets, so it travels over standard input. Raises `LaunchError` for a searcher that died
    before it had read the request.
    """
    with store.log.open("ab") as log:
        searcher = start_detached(
            [*command, store.name],
            log=log,
            # Not the tuning job's: its folder `code` would take the place of Python's module of that name.
            folder=home.path,
            # A home that was given relative to the user's folder would be another one in the searcher's.
            environment={HOME_VARIABLE: str(home.path)},
        )
    name = identity(searcher.pid)
    try:
        hand_over(searcher, {"request": request.to_send()})
    except BrokenPipeError:
        searcher.wait()
        raise LaunchError(f"the searcher of tuning job {store.name} did not start: {store.last_words()}") from None
    # It outlives this Python on purpose, which Popen would report as a leak; `is_alive` reaps it.
    searcher.returncode = 0
    return name
