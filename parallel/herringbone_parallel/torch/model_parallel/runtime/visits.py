"""Counts of what a microbatch does: they number its tickets and seed its calls, the same on every rank."""

from __future__ import annotations

from collections.abc import Hashable

from herringbone_parallel.torch.model_parallel.runtime.randomness import seed_of
from herringbone_parallel.torch.model_parallel.runtime.run_token import Ticket


class Visits:
    """The visits of one microbatch to each action and call; `stream_seed` is the seed of the microbatch.

        visits = Visits(stream_seed)
        visits.ticket(Phase.FORWARD, "layers.0")      # the first visit of this module
        visits.seed("layers.0")                       # the seed of the first call of that name

    Only the microbatch's own thread uses it.
    """

    def __init__(self, stream_seed: int) -> None:
        self.stream_seed = stream_seed
        self._actions: dict[tuple[int, Hashable], int] = {}
        self._seeded: dict[str, int] = {}

    def ticket(self, phase: int, action: Hashable) -> Ticket:
        """Return the ticket for the next visit of an action."""
        visit = self._actions[phase, action] = self._actions.get((phase, action), 0) + 1
        return Ticket(phase, action, visit)

    def seed(self, name: str) -> int:
        """Return the seed of the next call of this name. Every rank must ask, also those that do not need the seed."""
        visit = self._seeded[name] = self._seeded.get(name, 0) + 1
        return seed_of(self.stream_seed, name, visit)
