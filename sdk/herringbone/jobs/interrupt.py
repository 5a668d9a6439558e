"""What Ctrl-C means to one who waits for a job: stop it, or leave it running."""

from __future__ import annotations

import sys
from typing import Literal, get_args

from herringbone_contract.errors import OptionError

OnInterrupt = Literal["stop", "detach", "ask"]
CHOICES: tuple[str, ...] = get_args(OnInterrupt)


def check_choice(given: str | None) -> None:
    """Raise `OptionError` for a word that is none of the three; None leaves it to the backend."""
    if given is not None and given not in CHOICES:
        raise OptionError(f"on_interrupt: {given!r}: expected one of {', '.join(CHOICES)}")


def stops(choice: OnInterrupt, name: str) -> bool:
    """Say whether to stop the job; on a terminal `ask` puts one question, on a pipe there is nobody to ask.

    Enter alone, the end of the input and a second Ctrl-C leave the job running: it can still be stopped afterwards,
    and what was stopped cannot go on.
    """
    if choice != "ask":
        return choice == "stop"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        print(f"\nstop job {name}? Enter leaves it running [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        return False


def ways_back(name: str) -> str:
    """Say how to come back to a job that was left running.

    >>> ways_back("digits-1").partition(";")[0]
    'job digits-1 goes on'
    """
    return (
        f'job {name} goes on; follow it: herringbone logs -f {name}, or attach("{name}"); '
        f"stop it: herringbone stop {name}"
    )
