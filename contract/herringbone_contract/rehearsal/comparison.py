"""Compare what two runs of one job recorded. Pure.

undisturbed = [read(job.events()) for job in jobs]
repeatable(*undisturbed)                              # do two undisturbed runs give equal bits?
compare(undisturbed, read(disturbed.events()))        # does a run with a fault?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from herringbone_contract.rehearsal.records import Run
from herringbone_contract.rehearsal.verdict import Verdict


def repeatable(first: Run, second: Run) -> Verdict:
    """Compare two undisturbed runs: EQUAL, or DIFFERENT with the first difference of each reason."""
    raise NotImplementedError


def compare(undisturbed: Sequence[Run], disturbed: Run, *, layout: Literal["same", "other"] = "same") -> Verdict:
    """Compare a disturbed run with one or two undisturbed ones.

    With two, what they do not share is not blamed on the disturbance: it is a note, and without other findings the
    outcome is UNKNOWN. On the `other` layout weights are equal within floating-point error, and samples are sets.
    """
    raise NotImplementedError
