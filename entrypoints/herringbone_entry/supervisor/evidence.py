"""The signs of failure that reach the coordinator, and the rule that picks the cause among them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from herringbone_contract.failure import Failure


class Evidence(NamedTuple):
    """One sign of failure, at `when` seconds.

    `code` is None for a rank under mpirun that a signal killed: only mpirun knows the signal. `outside` means that
    somebody killed a process that the ranks need: a helper host, a server, mpirun or a daemon of its. Ranks that miss
    it fail too, and never the other way round.
    """

    when: float
    failure: Failure
    code: int | None
    from_launcher: bool = False
    lost_host: bool = False
    outside: bool = False


def first_cause(evidence: Sequence[Evidence], *, killed_code: int) -> Failure:
    """Return the failure that caused the others, with the job's exit code.

    `killed_code` is mpirun's word for a rank whose own code nobody knows.

    >>> late = Evidence(2.0, Failure("algo-1", 0), 1)
    >>> first_cause([late, Evidence(1.0, Failure("algo-2", 1), 3)], killed_code=1).rank
    1
    """
    # mpirun's end only follows from a rank's. A kill from outside explains a rank's end, whose report may arrive
    # earlier.
    first = min(evidence, key=lambda sign: (sign.from_launcher, not sign.outside, sign.when))
    if first.code is None:
        # When a host goes down, mpirun kills the other hosts' ranks, and their ends may be seen before the host's.
        first = next((sign for sign in evidence if sign.lost_host), first)
    code = first.code
    if code is None:
        code = killed_code or 1
    return first.failure._replace(exit_code=code)
