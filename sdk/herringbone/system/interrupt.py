"""The meaning of Ctrl-C while a user waits for a job: stop the job, or leave it running."""

from __future__ import annotations

import sys
from typing import Literal, get_args

from herringbone_contract.errors import OptionError

OnInterrupt = Literal["stop", "detach", "ask"]
CHOICES: tuple[str, ...] = get_args(OnInterrupt)


def check_choice(choice: str | None) -> None:
    """Raise `OptionError` for a word that is none of the three; None leaves the choice to the backend."""
    if choice is not None and choice not in CHOICES:
        raise OptionError(f"on_interrupt: {choice!r}: expected one of {', '.join(CHOICES)}")


def stops(choice: OnInterrupt, name: str) -> bool:
    """Return whether to stop the job; `ask` asks once on a terminal, and means no without one.

    Enter alone, the end of the input and a second Ctrl-C leave the job running: a running job can be stopped later,
    and a stopped job cannot continue.
    """
    if choice != "ask":
        return choice == "stop"
    # In a pipe or a notebook there is nobody to answer.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        # The question goes to stderr: stdout is the job's log, and may be a file.
        print(f"\nstop job {name}? Enter leaves it running [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        return False


def ways_back(name: str) -> str:
    """Return how to come back to a job that was left running.

    >>> ways_back("digits-1").partition(";")[0]
    'job digits-1 goes on'
    """
    return (
        f'job {name} goes on; follow it: herringbone logs -f {name}, or attach("{name}"); '
        f"stop it: herringbone stop {name}"
    )
