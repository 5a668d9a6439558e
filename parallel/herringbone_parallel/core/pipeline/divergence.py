"""Whether two ranks have done the same in a microbatch, as far as both have come.

    mine = Trace((("embed", 0), ("head", 1)), ended=True)
    theirs = Trace((("embed", 0), ("block.3", 0)), ended=False)
    difference(2, {0: mine, 1: theirs})

Every rank runs the same Python, so that its calls are the same on all. One that is only slow has done the beginning of
what another has done, and no more can be said; a difference within what both have done is never mended by waiting.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

# The name of a call, and the pipeline rank it runs on.
Call = tuple[str, int]
EVERYWHERE = -1

_EXPLAIN = (
    "`forward` and the step function must do the same on every rank: look there for a branch or a loop that depends on"
    " the rank, on time, on a random number of its own, or on data that is not the same everywhere."
)


class Trace(NamedTuple):
    """The calls of one microbatch on one rank, in their order; `ended` once its step function has returned."""

    calls: tuple[Call, ...]
    ended: bool


class Progress:
    """What one microbatch does on this rank, while its thread still adds to it."""

    __slots__ = ("calls", "ended")

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.ended = False

    def snapshot(self) -> Trace:
        """Return what is done by now; from any thread."""
        # First the end: the other way round, the last calls could be missing from a trace that says that it has ended.
        ended = self.ended
        return Trace(tuple(self.calls), ended)


def digest(traces: Iterable[Sequence[Call]]) -> int:
    """Return a number of the calls of all microbatches: the same in every process that has made the same calls.

    >>> digest([[("head", 1)], []]) == digest([(("head", 1),), ()]) != digest([[("tail", 1)], []])
    True
    """
    return zlib.crc32(repr([tuple(calls) for calls in traces]).encode())


def difference(microbatch: int, traces: Mapping[int, Trace]) -> str | None:
    """Return what two ranks (the keys) did differently in a microbatch, as a sentence for users; None if nothing.

    >>> print(difference(2, {0: Trace((("head", 1),), False), 1: Trace((), True)}))  # doctest: +ELLIPSIS
    the ranks of the pipeline diverge in microbatch 2: pipeline rank 0 called 'head', rank 1 ended the step function...
    """
    (one, first), (other, second) = sorted(traces.items())
    for place in range(max(len(first.calls), len(second.calls)) + 1):
        did = [_at(first, place), _at(second, place)]
        if None in did:
            return None
        if did[0] != did[1]:
            said = [_describe(call, did) for call in did]
            before = f" after {_name(first.calls[place - 1])}" if place else ""
            return (
                f"the ranks of the pipeline diverge in microbatch {microbatch}{before}: pipeline rank {one} {said[0]},"
                f" rank {other} {said[1]} (call {place + 1} of the microbatch). {_EXPLAIN}"
            )
    return None


def all_stand(news: Mapping[int, tuple[int, Mapping[int, int]]]) -> bool:
    """Say whether ranks that each wait for a message will wait for ever, as no message can be on its way.

    By rank: how often it had moved when it said that it waits, and the same number of each other rank as it had heard
    it by then. Whoever has heard the last word of a rank has also got all that it had sent before, and who waits sends
    nothing.

    >>> all_stand({0: (3, {1: 5}), 1: (5, {0: 3})}), all_stand({0: (4, {1: 5}), 1: (5, {0: 3})})
    (True, False)
    """
    return all(
        heard.get(other) == news[other][0] for rank, (_, heard) in news.items() for other in news if other != rank
    )


_END: Call = ("", EVERYWHERE)


def _at(trace: Trace, place: int) -> Call | None:
    """Return the call in this place, `_END` behind the last one; None when it is not known yet."""
    if place < len(trace.calls):
        return trace.calls[place]
    return _END if trace.ended else None


def _name(call: Call) -> str:
    return repr(call[0])


def _describe(call: Call | None, both: list[Call | None]) -> str:
    assert call is not None
    if call == _END:
        return "ended the step function"
    alike = len({each[0] for each in both if each is not None}) == 1
    return f"called {_name(call)}" + (f" on rank {call[1]}" if alike else "")
