"""Finds out why a step stands still: asks the other ranks what they did, and ends the step when waiting cannot help.

While the step goes on this costs nothing. When on this rank nothing has run and nothing has come between two looks of
the thread that called the step, it sends each peer a probe: its traces, and what it waits for. A step is ended for a
proof alone, never for being slow:

[1] In what both ranks have done of a microbatch, they did not do the same (`core.divergence`).
[2] A message is awaited from a peer that has ended this step, or its script. What it sent came before that news.
[3] Every rank stands, and has heard so from every other after that one last moved: no message can be on its way, as
    those between two ranks arrive in the order of their sending.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.divergence import Trace, difference, is_deadlock
from herringbone_parallel.torch.model_parallel.runtime.run_token import Baton, Standing
from herringbone_parallel.torch.model_parallel.runtime.transport import Key, Purpose, Transport

_WHAT = {
    Purpose.VALUE: "a tensor",
    Purpose.GRADIENT: "a gradient",
    Purpose.SHAPES: "the shapes of what a call returned",
    Purpose.OUTPUT: "a tensor's data (for .item(), `if` or the like)",
    Purpose.RESULTS: "the results of the step",
}
STALL_PURPOSES = (Purpose.PROBE, Purpose.ENDED, Purpose.DIVERGED)
_ADVICE = (
    "The ranks have not done the same: look in `forward` and in the step function for a branch, a loop or an argument"
    " that is not the same on every rank, and for .item(), print or `if` on a tensor that only some of them do."
)


class RanksDivergedError(ParallelError):
    """The ranks of a pipeline have not done the same in a step, so that one waits for what will never come."""


class Probe(NamedTuple):
    """What a rank that stands tells the others.

    `moves` counts how often it was seen to have moved, `heard` is the last count it had from each other rank.
    """

    moves: int
    heard: dict[int, int]
    waits: str
    traces: list[Trace]


class StallProbe:
    """Looks after one step of one rank; `look` is called now and then while it waits, `receive` by the mail threads.

    `traces` returns what each microbatch has done here by now.
    """

    def __init__(
        self, rank: int, step: int, transport: Transport, baton: Baton, traces: Callable[[], list[Trace]]
    ) -> None:
        self._rank = rank
        self._step = step
        self._transport = transport
        self._baton = baton
        self._traces = traces
        self._standing: Standing | None = None
        self._moves = 0
        self._sent: tuple[int, dict[int, int]] | None = None
        self._probes: dict[int, Probe] = {}
        self._ended: set[int] = set()
        self._over = False

    def look(self) -> None:
        """See whether anything has moved since the last look, and ask the peers if not."""
        # What was heard, and who has left, must be older than what stands: it has then been taken into account there.
        probes = dict(self._probes)
        left = dict.fromkeys(tuple(self._ended), "has ended this step") | self._transport.departed()
        standing = self._baton.standing()
        if standing is None or standing != self._standing:
            self._standing = standing
            self._moves += 1
            return
        heard = {peer: probe.moves for peer, probe in probes.items()}
        own = Probe(self._moves, heard, self._describe(standing), self._traces())
        if self._sent != (self._moves, heard):
            # A peer that finds a difference says more than can be said here, so it is given time to answer.
            self._sent = (self._moves, heard)
            for peer in self._transport.peers:
                self._transport.send_object(peer, self._key(Purpose.PROBE), own)
            return
        for wait in standing.waits:
            if wait.key[0] in left:
                self._end(f"pipeline rank {wait.key[0]} {left[wait.key[0]]}, but {self._describe(standing)}. {_ADVICE}")
                return
        everyone = {self._rank: own, **probes}
        if len(everyone) == 1 + len(self._transport.peers) and is_deadlock(
            {rank: (each.moves, each.heard) for rank, each in everyone.items()}
        ):
            waits = "; ".join(everyone[rank].waits for rank in sorted(everyone))
            self._end(f"no rank of the pipeline can go on in step {self._step}: {waits}. {_ADVICE}")

    def over(self) -> None:
        """The step has ended here; peers that still wait in it hear so, until the next step begins."""
        self._over = True
        for peer in tuple(self._probes):
            self._transport.send_object(peer, self._key(Purpose.ENDED), None)

    def receive(self, source: int, purpose: int, content: Any) -> None:
        """Take in what a peer says of the stall."""
        if purpose == Purpose.DIVERGED:
            self._baton.fail(RanksDivergedError(content))
        elif purpose == Purpose.ENDED:
            self._ended.add(source)
        else:
            self._compare(source, content)

    def _compare(self, source: int, probe: Probe) -> None:
        for microbatch, (mine, theirs) in enumerate(zip(self._traces(), probe.traces, strict=False)):
            said = difference(microbatch, {self._rank: mine, source: theirs})
            if said is not None:
                self._end(said)
                return
        self._probes[source] = probe
        if self._over:
            self._transport.send_object(source, self._key(Purpose.ENDED), None)

    def _end(self, reason: str) -> None:
        for peer in self._transport.peers:
            self._transport.send_object(peer, self._key(Purpose.DIVERGED), reason)
        self._baton.fail(RanksDivergedError(reason))

    def _describe(self, standing: Standing) -> str:
        if not standing.waits:
            return f"rank {self._rank} waits for its schedule"
        index, (source, key) = standing.waits[0]
        where = "" if index is None else f" in microbatch {index}{_after(self._traces()[index])}"
        return f"rank {self._rank} waits for {_WHAT[key.purpose]} from rank {source}{where}"

    def _key(self, purpose: int) -> Key:
        return Key(self._step, 0, 0, purpose)


def _after(trace: Trace) -> str:
    return f" (its last call: {trace.calls[-1][0]!r})" if trace.calls else ""
