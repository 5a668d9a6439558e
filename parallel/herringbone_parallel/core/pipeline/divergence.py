"""Compares the calls of two ranks in a microbatch, as far as both have come.

    mine = Trace((("embed", 0), ("head", 1)), ended=True)
    theirs = Trace((("embed", 0), ("block.3", 0)), ended=False)
    difference(2, {0: mine, 1: theirs})

Every rank runs the same Python, so every rank makes the same calls in the same order. A slow rank has made the first
calls of a fast one, which proves nothing. A difference within the calls that both have made is an error for good:
waiting cannot remove it.
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
# Compares as a call, so that "ended" and "made another call" differ like two calls.
_END: Call = ("", EVERYWHERE)


class Trace(NamedTuple):
    """The calls of one microbatch on one rank, in their order; `ended` once its step function has returned."""

    calls: tuple[Call, ...]
    ended: bool


class Progress:
    """The calls of one microbatch on this rank, while its own thread still adds to them.

    progress = Progress()
    progress.calls.append(("head", 1))
    """

    __slots__ = ("calls", "ended")

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.ended = False

    def snapshot(self) -> Trace:
        """Return the calls made so far; any thread may ask."""
        # No lock: the microbatch's thread appends calls and then sets `ended`. Read in the opposite order, or a trace
        # could say that it has ended and lack its last calls.
        ended = self.ended
        return Trace(tuple(self.calls), ended)


def digest(traces: Iterable[Sequence[Call]]) -> int:
    """Return a number for the calls of all microbatches, the same in every process that made the same calls.

    >>> digest([[("head", 1)], []]) == digest([(("head", 1),), ()]) != digest([[("tail", 1)], []])
    True
    """
    # Python's own `hash` of a string differs between processes.
    return zlib.crc32(repr([tuple(calls) for calls in traces]).encode())


def difference(microbatch: int, traces: Mapping[int, Trace]) -> str | None:
    """Describe the first difference between two ranks' calls as a sentence for users; return None if there is none.

    `traces` maps the two pipeline ranks to their traces of the microbatch.

    >>> print(difference(2, {0: Trace((("head", 1),), False), 1: Trace((), True)}))  # doctest: +ELLIPSIS
    the ranks of the pipeline diverge in microbatch 2: pipeline rank 0 called 'head', rank 1 ended the step function...
    """
    (first_rank, first), (second_rank, second) = sorted(traces.items())
    # One position behind the longer trace, where the shorter one may have ended.
    for position in range(max(len(first.calls), len(second.calls)) + 1):
        calls = [_call_at(first, position), _call_at(second, position)]
        if None in calls:
            return None
        if calls[0] != calls[1]:
            actions = [_describe(call, calls) for call in calls]
            before = f" after {_name(first.calls[position - 1])}" if position else ""
            return (
                f"the ranks of the pipeline diverge in microbatch {microbatch}{before}: pipeline rank {first_rank}"
                f" {actions[0]}, rank {second_rank} {actions[1]} (call {position + 1} of the microbatch). {_EXPLAIN}"
            )
    return None


def is_deadlock(reports: Mapping[int, tuple[int, Mapping[int, int]]]) -> bool:
    """Return True if ranks that all wait for a message will wait for ever, because no message is on its way.

    A rank reports how often it has moved, and the last such count that it received from each other rank. Messages
    between two ranks arrive in order, and a waiting rank sends none. So a rank that received another rank's latest
    count has received all its earlier messages, too.

    >>> is_deadlock({0: (3, {1: 5}), 1: (5, {0: 3})}), is_deadlock({0: (4, {1: 5}), 1: (5, {0: 3})})
    (True, False)
    """
    return all(
        received.get(other) == reports[other][0]
        for rank, (_, received) in reports.items()
        for other in reports
        if other != rank
    )


def _call_at(trace: Trace, position: int) -> Call | None:
    """Return the call at this position, `_END` behind the last one, or None when it is not known yet."""
    if position < len(trace.calls):
        return trace.calls[position]
    return _END if trace.ended else None


def _name(call: Call) -> str:
    return repr(call[0])


def _describe(call: Call | None, both: list[Call | None]) -> str:
    assert call is not None
    if call == _END:
        return "ended the step function"
    # Two calls of one name differ in their ranks, so only then the rank is worth a word.
    same_name = len({other[0] for other in both if other is not None}) == 1
    return f"called {_name(call)}" + (f" on rank {call[1]}" if same_name else "")
