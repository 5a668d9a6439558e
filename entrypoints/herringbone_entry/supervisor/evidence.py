"""The signs of failure that reach the coordinator, and the rule that picks the cause among them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from herringbone_contract.failure import Failure

_SIGKILL_CODE = 137
# By these signals an mpirun ends the ranks that remain when one has died.
_LAUNCHERS_SIGNALS = (_SIGKILL_CODE, 143)


class Evidence(NamedTuple):
    """One sign of failure, at `when` seconds.

    `code` is None for a rank under mpirun that a signal killed: mpirun knows the signal, and so does the system if it
    was asked in time (`seen`). `reaped` means that mpirun knew this end before it could see another. `outside` means
    that somebody killed a process that the ranks need: a helper host, a server, mpirun or a daemon of its. Ranks that
    miss it fail too, and never the other way round.
    """

    when: float
    failure: Failure
    code: int | None
    seen: int | None = None
    reaped: bool = False
    from_launcher: bool = False
    lost_host: bool = False
    outside: bool = False


def first_cause(evidence: Sequence[Evidence], *, launcher_code: int, may_be_ours: bool) -> Failure:
    """Return the failure that caused the others, with the job's exit code.

    `launcher_code` is mpirun's word for a rank whose own code nobody knows. `may_be_ours` means that it is that of a
    rank that our own abort ended: then a signal that leaves no other trace is assumed.

    >>> late = Evidence(2.0, Failure("algo-1", 0), 1)
    >>> first_cause([late, Evidence(1.0, Failure("algo-2", 1), 3)], launcher_code=1, may_be_ours=False).rank
    1
    """
    # mpirun's end only follows from a rank's. A kill from outside explains a rank's end, whose report may arrive
    # earlier.
    first = min(evidence, key=lambda sign: (sign.from_launcher, not sign.outside, sign.when))
    if first.code is None:
        # When a host goes down, mpirun kills the other hosts' ranks, and their ends may be seen before the host's.
        first = next((sign for sign in evidence if sign.lost_host), first)
    if first.code is None and first.seen in _LAUNCHERS_SIGNALS:
        # MPICH kills the others at once, and their ends may arrive first. Any other signal was the rank's own.
        first = next((sign for sign in evidence if _died_by_itself(sign)), first)
    code = first.code
    if code is None:
        guess = _SIGKILL_CODE if may_be_ours and not first.reaped else launcher_code
        code = first.seen or guess or 1
    return first.failure._replace(exit_code=code)


def _died_by_itself(sign: Evidence) -> bool:
    return sign.code is None and sign.seen is not None and sign.seen not in _LAUNCHERS_SIGNALS
