"""Start the detached process that searches: `python -m herringbone.tuner NAME < order`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from herringbone.backends.detached import search_path
from herringbone.jobs.home import HOME_VARIABLE, Home
from herringbone.processes import identity
from herringbone.tuner.trial_plan import plan_text
from herringbone_contract.errors import LaunchError

if TYPE_CHECKING:
    from herringbone.planning.plan import JobPlan
    from herringbone.tuner.store import TuningStore

SEARCHER = (sys.executable, "-m", "herringbone.tuner")


def start_searcher(store: TuningStore, home: Home, plan: JobPlan, *, command: Sequence[str] = SEARCHER) -> str | None:
    """Start a searcher, hand it the shared plan of the trials, and return its identity.

    The plan has the user's secrets, so it travels over standard input. Raises `LaunchError` for a searcher that died
    before it had read the plan.
    """
    with store.log.open("ab") as log:
        searcher = subprocess.Popen(
            [*command, store.name],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            # A session of its own: the terminal's Ctrl-C and hang-up do not reach the searcher.
            start_new_session=True,
            # `-m` looks for modules in the current folder first: the user's may contain a json.py, and the tuning job's
            # has a folder code, which would take the place of Python's module of that name.
            cwd=home.path,
            # A home that was given relative to the user's folder would be another one in the searcher's.
            env={**os.environ, **search_path(), HOME_VARIABLE: str(home.path)},
        )
    name = identity(searcher.pid)
    assert searcher.stdin is not None
    try:
        with searcher.stdin as pipe:
            pipe.write(json.dumps({"plan": plan_text(plan)}).encode())
    except BrokenPipeError:
        searcher.wait()
        raise LaunchError(f"the searcher of tuning job {store.name} did not start: {store.last_words()}") from None
    # It outlives this Python on purpose, which Popen would report as a leak; `is_alive` reaps it.
    searcher.returncode = 0
    return name
