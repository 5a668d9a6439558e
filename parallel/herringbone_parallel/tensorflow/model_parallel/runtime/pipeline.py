"""Runs a rank's program for all microbatches of a step, in the order of the schedule.

The rules are those of `core.simulate`: a rank runs one microbatch at a time, asks its schedule whenever the one that
ran must wait, changes phase or ends; what can go on in the same phase does; and microbatches go through the same piece
in the order of their numbers, so that state changes in the same order as in one process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from herringbone_parallel.core.pipeline.dataflow import Output
from herringbone_parallel.core.pipeline.schedule import BACKWARD, FORWARD, WEIGHT, Ready, make_schedule
from herringbone_parallel.tensorflow.model_parallel.arrays import as_array, as_tensor
from herringbone_parallel.tensorflow.model_parallel.runtime.cut import Piece, Program
from herringbone_parallel.tensorflow.model_parallel.runtime.deferral import PutOff
from herringbone_parallel.tensorflow.model_parallel.runtime.messages import Key
from herringbone_parallel.tensorflow.model_parallel.runtime.transport import Transport

Note = Callable[[int, str, int, float, float], None]


class _Microbatch:
    """One microbatch on this rank: the values that it still needs, and how far it is."""

    def __init__(self, number: int, program: Program, arguments: Sequence[Any]) -> None:
        self.number = number
        self.passed = 0
        self.started = False
        self._program = program
        self._left = dict(program.uses)
        self._values: dict[Output, Any] = {}
        for value, argument in zip(program.arguments, arguments, strict=True):
            self.keep(value, argument)

    @property
    def piece(self) -> Piece | None:
        pieces = self._program.pieces
        return pieces[self.passed] if self.passed < len(pieces) else None

    def keep(self, value: Output, tensor: Any) -> None:
        if self._left.get(value):
            self._values[value] = tensor

    def use(self, value: Output) -> Any:
        """Return a value; after its last use it is let go."""
        self._left[value] -= 1
        return self._values[value] if self._left[value] else self._values.pop(value)


class _Later:
    """What has been put off: for each segment the microbatches of one group, and the groups that are full.

    Groups are of the same microbatches whatever comes when, and are added up in their order: sums stay the same.
    """

    def __init__(self, microbatches: int) -> None:
        self._last = microbatches - 1
        # Sums that one group makes, and no variable has, as arrays.
        self.sums: dict[Output, Any] = {}
        self._open: dict[int, list[Sequence[Any]]] = {}
        self._full: deque[tuple[PutOff, int, list[Sequence[Any]]]] = deque()

    def __len__(self) -> int:
        return len(self._full)

    def keep(self, put_off: PutOff, microbatch: int, values: Sequence[Any]) -> None:
        """Keep what a microbatch has."""
        group = self._open.setdefault(id(put_off), [])
        group.append(values)
        if microbatch == self._last or len(group) == put_off.size:
            self._full.append((put_off, microbatch, self._open.pop(id(put_off))))

    def compute(self) -> int:
        """Compute the oldest group that is full; return its last microbatch."""
        put_off, microbatch, group = self._full.popleft()
        made = put_off.function(len(group))([value for values in zip(*group, strict=True) for value in values])
        self.sums.update(zip(put_off.gives, map(as_array, made), strict=True))
        return microbatch


class Run:
    """One step of one rank.

    `partitions` are the ranks, by number in the job, that hold them. `note(step, phase, microbatch, start, end)` is
    told each stretch of work. `peak_live` is the most microbatches
    that had begun here and had not ended.
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
        self._schedule = make_schedule(pipeline, active=active)
        self.peak_live = 0
        self.sums: dict[Output, Any] = {}

    def run(self, microbatches: Sequence[Sequence[Any]], summed: Sequence[Output] = ()) -> list[list[Any]]:
        """Run all microbatches, given the arguments of each; return the program's results of each.

        Afterwards `sums` has the sums of `summed` over the microbatches, in the order of their numbers, as arrays.
        """
        self._program.sums.clear()
        self._later = _Later(len(microbatches))
        everyone = [_Microbatch(number, self._program, given) for number, given in enumerate(microbatches)]
        while any(microbatch.piece is not None for microbatch in everyone):
            # What comes from here on may change the answer.
            arrived = self._transport.arrived if self._transport is not None else 0
            choice = self._schedule(self._ready(everyone))
            if choice is None:
                if self._later:
                    self._compute_put_off()
                else:
                    self._wait(everyone, arrived)
                continue
            chosen = everyone[choice]
            chosen.started = True
            self.peak_live = max(self.peak_live, sum(m.started and m.piece is not None for m in everyone))
            while self._able(chosen, everyone):
                phase = self._compute(chosen)
                if chosen.piece is None or chosen.piece.phase != phase:
                    break
        while self._later:
            self._compute_put_off()
        for microbatch in everyone:
            for value, edge, source in self._program.arriving:
                self._receive(microbatch, value, edge, source)
        results = [[microbatch.use(value) for value in self._program.results] for microbatch in everyone]
        self.sums = {value: self._sum(value, results) for value in summed}
        return results

    def _sum(self, value: Output, results: Sequence[Sequence[Any]]) -> Any:
        if value in self._program.sums.variables:
            return self._program.sums.read(value)
        if value in self._later.sums:
            return self._later.sums[value]
        place = self._program.results.index(value)
        first, *others = [as_array(leaves[place]) for leaves in results]
        total = first.copy() if others else first
        for other in others:
            total += other
        return total

    def _ready(self, everyone: Sequence[_Microbatch]) -> Ready:
        able: dict[str, list[int]] = {FORWARD: [], BACKWARD: []}
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
            elif self._able(microbatch, everyone):
                able[piece.phase].append(microbatch.number)
        return Ready(
            forward=tuple(able[FORWARD]),
            backward=tuple(able[BACKWARD]),
            fresh=tuple(fresh),
            live=live,
            forwards_left=forwards_left,
        )

    def _able(self, microbatch: _Microbatch, everyone: Sequence[_Microbatch]) -> bool:
        piece = microbatch.piece
        if piece is None:
            return False
        if microbatch.number and everyone[microbatch.number - 1].passed <= piece.behind:
            return False
        return all(self._has(microbatch.number, edge) for _, edge, _ in piece.receives)

    def _has(self, microbatch: int, edge: int) -> bool:
        assert self._transport is not None, "one rank alone has no edges"
        return self._transport.has(Key(self._step, microbatch, edge))

    def _wait(self, everyone: Sequence[_Microbatch], arrived: int) -> None:
        """Wait until more values have come than had `arrived` when the schedule was asked."""
        transport = self._transport
        assert transport is not None, "one rank alone never waits"
        sources = {
            self._partitions[source]
            for microbatch in everyone
            if microbatch.started and microbatch.piece is not None
            for _, edge, source in microbatch.piece.receives
            if not self._has(microbatch.number, edge)
        }
        transport.wait(lambda: transport.arrived != arrived, lambda: sources, self._step)

    def _compute(self, microbatch: _Microbatch) -> str:
        piece = microbatch.piece
        assert piece is not None
        for value, edge, _ in piece.receives:
            self._receive(microbatch, value, edge, None)
        start = time.monotonic()
        given = piece.function([microbatch.use(value) for value in piece.takes])
        if self._note is not None:
            self._note(self._step, piece.phase, microbatch.number, start, time.monotonic())
        for place, edge, target in piece.sends:
            assert self._transport is not None
            key = Key(self._step, microbatch.number, edge)
            self._transport.post(self._partitions[target], self._program.number, key, as_array(given[place]))
        for value, tensor in zip(piece.gives, given, strict=True):
            microbatch.keep(value, tensor)
        if piece.put_off is not None:
            kept = [microbatch.use(value) for value in piece.put_off.takes]
            self._later.keep(piece.put_off, microbatch.number, kept)
            if len(self._later) > 1:
                # There is memory for one full group and for one that fills.
                self._compute_put_off()
        microbatch.passed += 1
        return piece.phase

    def _compute_put_off(self) -> None:
        start = time.monotonic()
        microbatch = self._later.compute()
        if self._note is not None:
            self._note(self._step, WEIGHT, microbatch, start, time.monotonic())

    def _receive(self, microbatch: _Microbatch, value: Output, edge: int, source: int | None) -> None:
        """Keep what an edge brought, or add it to its sum; with a `source` it may still be on its way."""
        transport, key = self._transport, Key(self._step, microbatch.number, edge)
        assert transport is not None
        if source is not None:
            transport.wait(lambda: transport.has(key), lambda: {self._partitions[source]}, self._step)
        tensor = as_tensor(transport.take(key, self._program.number))
        microbatch.keep(value, tensor)
        if value in self._program.sums.variables:
            self._program.sums.variables[value].assign_add(tensor, read_value=False)
