"""The stall probe: asks the other ranks why a step is blocked, and ends the step when waiting cannot help.

While the step runs, the probe costs nothing. The thread that called the step polls every half second. If this rank has
neither run anything nor received anything between two polls, the probe sends its traces, and the messages it waits for,
to each peer. It ends a step only with a proof, never for being slow:

[1] Two ranks differ in the calls that both have made in a microbatch (`core.pipeline.divergence`).
[2] This rank waits for a message from a peer that has ended this step, or its script. All messages of that peer have
    arrived, because they were sent before its report.
[3] Every rank is blocked, and each has a report of that from every other rank, sent after that rank last moved. No
    message can be on its way, because messages between two ranks arrive in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.divergence import Trace, difference, is_deadlock
from herringbone_parallel.torch.model_parallel.runtime.messages import Key, Purpose
from herringbone_parallel.torch.model_parallel.runtime.run_token import Awaited, BlockedState, RunToken
from herringbone_parallel.torch.model_parallel.runtime.transport import Transport

_CONTENT_OF = {
    Purpose.VALUE: "a tensor",
    Purpose.GRADIENT: "a gradient",
    Purpose.SHAPES: "the shapes of what a call returned",
    Purpose.OUTPUT: "a tensor's data (for .item(), `if` or the like)",
    Purpose.RESULTS: "the results of the step",
    Purpose.TURNS: "the results of the step",
    Purpose.DIGEST: "the arguments of the step",
    Purpose.ARGUMENTS: "the arguments of the step",
}
STALL_PURPOSES = (Purpose.PROBE, Purpose.ENDED, Purpose.DIVERGED)
_ADVICE = (
    "The ranks have not done the same: look in `forward` and in the step function for a branch, a loop or an argument"
    " that is not the same on every rank, and for .item(), print or `if` on a tensor that only some ranks execute."
)


class RanksDivergedError(ParallelError):
    """The ranks of a pipeline have not done the same in a step, so that one waits for a message that never comes.

    To fix: Make all ranks run the same Python in a step: no branch on the rank, on time or on unseeded random numbers.
    """


class Probe(NamedTuple):
    """The report of a blocked rank to the others.

    `moves` counts the polls at which the rank had moved. `peer_moves` is the last such count from each peer.
    """

    moves: int
    peer_moves: dict[int, int]
    waits: str
    traces: list[Trace]


class StallProbe:
    """Watches one step of one rank.

    The thread that called the step calls `poll` and `end_step`; the transport's threads call `receive`. `traces`
    returns the calls of each microbatch on this rank so far. There is no lock: each member is written by one kind of
    thread, and the other kind reads it, or copies it, in one atomic operation.
    """

    def __init__(
        self, rank: int, step: int, transport: Transport, token: RunToken, traces: Callable[[], list[Trace]]
    ) -> None:
        self._rank = rank
        self._step = step
        self._transport = transport
        self._token = token
        self._traces = traces
        self._last_state: BlockedState | None = None
        self._moves = 0
        # `moves` and `peer_moves` of the probe that was sent last.
        self._sent: tuple[int, dict[int, int]] | None = None
        # Written by the transport's threads.
        self._probes: dict[int, Probe] = {}
        self._ended_peers: set[int] = set()
        self._ended = False

    def poll(self) -> None:
        """Ask the peers if nothing has moved since the last poll, and end the step if a proof is complete."""
        # In this order: the peers' reports must be older than the blocked state. Every message that a peer sent before
        # its report is then already counted in that state.
        probes = dict(self._probes)
        left = dict.fromkeys(tuple(self._ended_peers), "has ended this step") | self._transport.departed()
        blocked = self._token.blocked_state()
        if blocked is None or blocked != self._last_state:
            self._last_state = blocked
            self._moves += 1
            return
        peer_moves = {peer: probe.moves for peer, probe in probes.items()}
        own_probe = Probe(self._moves, peer_moves, self._describe(blocked), self._traces())
        if self._sent != (self._moves, peer_moves):
            # Judge at a later poll: a peer that finds a difference in the traces has the better explanation, and needs
            # time to answer.
            self._sent = (self._moves, peer_moves)
            for peer in self._transport.peers:
                self._transport.send_object(peer, self._key(Purpose.PROBE), own_probe)
            return
        for awaited in blocked.awaited:
            source = awaited.key.source
            if source in left:
                self._fail(f"pipeline rank {source} {left[source]}, but {self._describe(blocked)}. {_ADVICE}")
                return
        # Proof [3] needs a report from every rank of the pipeline.
        everyone = {self._rank: own_probe, **probes}
        if len(everyone) == 1 + len(self._transport.peers) and is_deadlock(
            {rank: (probe.moves, probe.peer_moves) for rank, probe in everyone.items()}
        ):
            waits = "; ".join(everyone[rank].waits for rank in sorted(everyone))
            self._fail(f"no rank of the pipeline can go on in step {self._step}: {waits}. {_ADVICE}")

    def end_step(self) -> None:
        """Report the end of the step to peers that still wait in it, now and until the next step begins."""
        # First the flag: a probe that arrives during the loop is then answered by `_compare`.
        self._ended = True
        for peer in tuple(self._probes):
            self._transport.send_object(peer, self._key(Purpose.ENDED), None)

    def receive(self, source: int, purpose: int, content: Any) -> None:
        """Take in a peer's message about the blocked step."""
        if purpose == Purpose.DIVERGED:
            # The peer has sent the reason to every rank, so this rank sends nothing.
            self._token.fail(RanksDivergedError(content))
        elif purpose == Purpose.ENDED:
            self._ended_peers.add(source)
        else:
            self._compare(source, content)

    def _compare(self, source: int, probe: Probe) -> None:
        for microbatch, (trace, peer_trace) in enumerate(zip(self._traces(), probe.traces, strict=False)):
            reason = difference(microbatch, {self._rank: trace, source: peer_trace})
            if reason is not None:
                self._fail(reason)
                return
        self._probes[source] = probe
        if self._ended:
            self._transport.send_object(source, self._key(Purpose.ENDED), None)

    def _fail(self, reason: str) -> None:
        """End the step on every rank of the pipeline."""
        # The peers first: `fail` lets this rank's step raise, and the script may end before they would be sent.
        for peer in self._transport.peers:
            self._transport.send_object(peer, self._key(Purpose.DIVERGED), reason)
        self._token.fail(RanksDivergedError(reason))

    def _describe(self, blocked: BlockedState) -> str:
        if not blocked.awaited:
            return f"rank {self._rank} waits for its schedule"
        first = blocked.awaited[0]
        source, key = first.key
        position = "" if first.microbatch is None else f" in microbatch {first.microbatch}{self._last_call(first)}"
        return f"rank {self._rank} waits for {_CONTENT_OF[key.purpose]} from rank {source}{position}"

    def _last_call(self, awaited: Awaited) -> str:
        assert awaited.microbatch is not None
        calls = self._traces()[awaited.microbatch].calls
        return f" (its last call: {calls[-1][0]!r})" if calls else ""

    def _key(self, purpose: int) -> Key:
        # One key per step is enough: the transport calls `receive` for each such message, and nobody waits for them.
        return Key(self._step, 0, 0, purpose)
