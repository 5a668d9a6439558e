"""The interface of a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from herringbone.tuner.trials import Proposal, Trial


class Strategy(Protocol):
    """A way to choose the next trials. A pure function of the definition and of results, without memory or clock.

    >>> strategy_for(definition).propose(trials, free=4)        # doctest: +SKIP
    """

    def propose(self, trials: Sequence[Trial], free: int) -> list[Proposal]:
        """Return at most `free` new proposals; `trials` are all so far, the trial of number k at index k.

        An empty list while trials run means: wait for one. An empty list when all trials are over means: the search is
        finished. Calling it with fewer `free`, more often, or in another order of ends gives the same proposals.
        """
        ...
