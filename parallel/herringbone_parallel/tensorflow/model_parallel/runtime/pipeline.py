"""Runs a rank's program for all microbatches of a step, in the order of the schedule.

The rules are those of `core.pipeline.simulate`:

    [1] a rank runs one microbatch at a time
    [2] it asks its schedule whenever the running microbatch must wait, changes phase or ends
    [3] a microbatch that can go on in the same phase does so
    [4] microbatches pass a piece in the order of their numbers, so state changes in the same order as in one process

Everything here runs in the thread that called the step. Only `Transport` has threads of its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from herringbone_parallel.core.pipeline.dataflow import Output
from herringbone_parallel.core.pipeline.schedule import BACKWARD, FORWARD, WEIGHT, Ready, make_schedule
from herringbone_parallel.tensorflow.model_parallel.arrays import as_array, as_tensor
from herringbone_parallel.tensorflow.model_parallel.runtime.cut import Arrival, Piece, Program
from herringbone_parallel.tensorflow.model_parallel.runtime.deferral import DeferredProducts
from herringbone_parallel.tensorflow.model_parallel.runtime.messages import Key
from herringbone_parallel.tensorflow.model_parallel.runtime.transport import Transport

Note = Callable[[int, str, int, float, float], None]


class _Microbatch:
    """One microbatch on this rank: the values that it still needs, and the number of pieces that it has passed."""

    def __init__(self, number: int, program: Program, arguments: Sequence[Any]) -> None:
        self.number = number
        self.passed = 0
        self.started = False
        self._program = program
        # The remaining uses of each value. A value is freed after its last use, so the live microbatches bound the
        # memory of a step.
        self._uses_left = dict(program.uses)
        self._values: dict[Output, Any] = {}
        for value, argument in zip(program.arguments, arguments, strict=True):
            self.keep(value, argument)

    @property
    def piece(self) -> Piece | None:
        """Return the next piece, None at the end of the program."""
        pieces = self._program.pieces
        return pieces[self.passed] if self.passed < len(pieces) else None

    def keep(self, value: Output, tensor: Any) -> None:
        """Keep a value if the program will use it."""
        if self._uses_left.get(value):
            self._values[value] = tensor

    def use(self, value: Output) -> Any:
        """Return a value, and free it after its last use."""
        self._uses_left[value] -= 1
        return self._values[value] if self._uses_left[value] else self._values.pop(value)


class _Group(NamedTuple):
    """Values of a full group of microbatches, from which one call computes the sums of a segment's products."""

    deferred: DeferredProducts
    last_microbatch: int
    values: list[Sequence[Any]]


class _DeferredWork:
    """Products that were put off: per segment the group that fills, and all groups that are full.

    A segment's groups have the same microbatches in every step, and they are added up in the order in which they fill.
    Rule [4] fixes both, so the last bits of a sum do not depend on the time at which messages arrive.
    """

    def __init__(self, microbatches: int) -> None:
        self._last = microbatches - 1
        # Sums that have no variable because one group makes them whole; as arrays.
        self.sums: dict[Output, Any] = {}
        # By the id of the `DeferredProducts`; the program keeps these objects alive during the step.
        self._filling: dict[int, list[Sequence[Any]]] = {}
        self._full: deque[_Group] = deque()

    def __len__(self) -> int:
        return len(self._full)

    def keep(self, deferred: DeferredProducts, microbatch: int, values: Sequence[Any]) -> None:
        """Keep the factors of a microbatch's products."""
        group = self._filling.setdefault(id(deferred), [])
        group.append(values)
        # The last microbatch closes its group even if the group is smaller than the others.
        if microbatch == self._last or len(group) == deferred.size:
            self._full.append(_Group(deferred, microbatch, self._filling.pop(id(deferred))))

    def compute(self) -> int:
        """Compute the oldest full group; return its last microbatch."""
        deferred, last_microbatch, group = self._full.popleft()
        # From one list per microbatch to one list per value: the order that `DeferredProducts.function` takes.
        totals = deferred.function(len(group))([value for values in zip(*group, strict=True) for value in values])
        self.sums.update(zip(deferred.gives, map(as_array, totals), strict=True))
        return last_microbatch


class Run:
    """One step of one rank.

    `partitions` are the ranks of the job that hold the partitions, in order. `note(step, phase, microbatch, start,
    end)` receives each stretch of work. `peak_live` is the largest number of microbatches that were live at once.
    """

    def __init__(
        self,
        program: Program,
        step: int,
        transport: Transport | None,
        partitions: Sequence[int],
        pipeline: str,
        active: int,
        note: Note | None = None,
    ) -> None:
        self._note = note
        self._program, self._step, self._transport, self._partitions = program, step, transport, partitions
        # Each step has a schedule of its own: a failed step leaves its generator in the middle.
        self._schedule = make_schedule(pipeline, active=active)
        self.peak_live = 0
        self.sums: dict[Output, Any] = {}

    def run(self, microbatches: Sequence[Sequence[Any]], summed: Sequence[Output] = ()) -> list[list[Any]]:
        """Run all microbatches, given the arguments of each; return the program's results of each.

        Afterwards `sums` holds the sums of `summed` over the microbatches, in the order of their numbers, as arrays.
        """
        # The variables are those of the program: a failed step may have left partial sums in them.
        self._program.sums.clear()
        self._deferred = _DeferredWork(len(microbatches))
        everyone = [_Microbatch(number, self._program, tensors) for number, tensors in enumerate(microbatches)]
        while any(microbatch.piece is not None for microbatch in everyone):
            # Read the counter before the schedule looks. A value that arrives in between then ends the wait at once.
            arrived = self._transport.arrived if self._transport is not None else 0
            choice = self._schedule(self._ready(everyone))
            if choice is None:
                # No microbatch can run. The deferred products, for which no rank waits, fill the gap.
                if self._deferred:
                    self._compute_deferred()
                else:
                    self._wait(everyone, arrived)
                continue
            chosen = everyone[choice]
            chosen.started = True
            self.peak_live = max(self.peak_live, sum(m.started and m.piece is not None for m in everyone))
            # Rule [3]: within a phase the schedule is not asked again.
            while self._can_run(chosen, everyone):
                phase = self._compute(chosen)
                if chosen.piece is None or chosen.piece.phase != phase:
                    break
        while self._deferred:
            self._compute_deferred()
        # Results of other ranks come last, when this rank has nothing else to do.
        for microbatch in everyone:
            for arrival in self._program.arriving:
                self._receive(microbatch, arrival, wait=True)
        results = [[microbatch.use(value) for value in self._program.results] for microbatch in everyone]
        self.sums = {value: self._sum(value, results) for value in summed}
        return results

    def _sum(self, value: Output, results: Sequence[Sequence[Any]]) -> Any:
        if value in self._program.sums.variables:
            return self._program.sums.read(value)
        if value in self._deferred.sums:
            return self._deferred.sums[value]
        # A program without sums returns the gradient of each microbatch, in eager code or for a script that reads them.
        position = self._program.results.index(value)
        first, *others = [as_array(leaves[position]) for leaves in results]
        # A copy, because the array shares its memory with the tensor that the caller gets.
        total = first.copy() if others else first
        for other in others:
            total += other
        return total

    def _ready(self, everyone: Sequence[_Microbatch]) -> Ready:
        ready: dict[str, list[int]] = {FORWARD: [], BACKWARD: []}
        fresh: list[int] = []
        live = forwards_left = 0
        for microbatch in everyone:
            piece = microbatch.piece
            if piece is None:
                continue
            forwards_left += piece.phase == FORWARD
            live += microbatch.started
            if not microbatch.started:
                fresh.append(microbatch.number)
            elif self._can_run(microbatch, everyone):
                ready[piece.phase].append(microbatch.number)
        return Ready(
            forward=tuple(ready[FORWARD]),
            backward=tuple(ready[BACKWARD]),
            fresh=tuple(fresh),
            live=live,
            forwards_left=forwards_left,
        )

    def _can_run(self, microbatch: _Microbatch, everyone: Sequence[_Microbatch]) -> bool:
        piece = microbatch.piece
        if piece is None:
            return False
        # Rule [4]: the previous microbatch must have passed every piece that shares changing state with this one.
        if microbatch.number and everyone[microbatch.number - 1].passed <= piece.behind:
            return False
        return all(self._has(microbatch.number, arrival.edge) for arrival in piece.receives)

    def _has(self, microbatch: int, edge: int) -> bool:
        assert self._transport is not None, "a single rank has no edges"
        return self._transport.has(Key(self._step, microbatch, edge))

    def _wait(self, everyone: Sequence[_Microbatch], arrived: int) -> None:
        """Wait until more values have arrived than `arrived`, the count when the schedule was asked."""
        transport = self._transport
        assert transport is not None, "a single rank never waits"
        # Only ranks that owe a value count: the others may end their script before this step is over.
        sources = {
            self._partitions[arrival.source]
            for microbatch in everyone
            if microbatch.started and microbatch.piece is not None
            for arrival in microbatch.piece.receives
            if not self._has(microbatch.number, arrival.edge)
        }
        transport.wait(lambda: transport.arrived != arrived, lambda: sources, self._step)

    def _compute(self, microbatch: _Microbatch) -> str:
        piece = microbatch.piece
        assert piece is not None
        for arrival in piece.receives:
            self._receive(microbatch, arrival)
        # The timeline shows computation only: neither the wait for values nor their sending is part of it.
        start = time.monotonic()
        results = piece.function([microbatch.use(value) for value in piece.takes])
        if self._note is not None:
            self._note(self._step, piece.phase, microbatch.number, start, time.monotonic())
        # Send before anything else: another rank may wait for these values.
        for position, edge, target in piece.sends:
            assert self._transport is not None
            key = Key(self._step, microbatch.number, edge)
            self._transport.send_tensor(
                self._partitions[target], self._program.number, key, as_array(results[position])
            )
        for value, tensor in zip(piece.gives, results, strict=True):
            microbatch.keep(value, tensor)
        if piece.deferred is not None:
            factors = [microbatch.use(value) for value in piece.deferred.takes]
            self._deferred.keep(piece.deferred, microbatch.number, factors)
            if len(self._deferred) > 1:
                # The memory bound of a step allows one full group and one that fills.
                self._compute_deferred()
        microbatch.passed += 1
        return piece.phase

    def _compute_deferred(self) -> None:
        start = time.monotonic()
        microbatch = self._deferred.compute()
        if self._note is not None:
            self._note(self._step, WEIGHT, microbatch, start, time.monotonic())

    def _receive(self, microbatch: _Microbatch, arrival: Arrival, *, wait: bool = False) -> None:
        """Keep a value that came over an edge, or add it to its sum; with `wait` it may still be on its way."""
        transport, key = self._transport, Key(self._step, microbatch.number, arrival.edge)
        assert transport is not None
        if wait:
            transport.wait(lambda: transport.has(key), lambda: {self._partitions[arrival.source]}, self._step)
        tensor = as_tensor(transport.take(key, self._program.number))
        microbatch.keep(arrival.value, tensor)
        # Another rank computed the value, so no piece of this rank adds it to its variable.
        if arrival.value in self._program.sums.variables:
            self._program.sums.variables[arrival.value].assign_add(tensor, read_value=False)
