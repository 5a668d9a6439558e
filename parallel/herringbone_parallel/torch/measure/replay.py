"""Call the operations of a measured step again, with random tensors, and time them.

    replay = Replay(measurement, device=torch.device("cpu"), threads=1)
    replay.run(budget_s=20.0)           # {operation: seconds of one call}

Operations run in the order of the step, and their results live about as long as in the step. Calls of one operation in
a row would find their tensors in the cache and their memory in the allocator: they are up to a quarter faster than in
training. For the same reason each layer has weights of its own: a step reads them from memory, and not from the cache.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch

from herringbone_contract.prediction.question import QUIET_SLOWDOWN
from herringbone_parallel.core.prediction.measurement import Measurement, Operation, Phase
from herringbone_parallel.torch.measure.replay_arguments import Decoding, Tensors, Turn, limit_of_indices, sorted_shape

_PHASES = (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD, Phase.BETWEEN, Phase.OPTIMIZER)
# The first half of the budget finds out what operations cost; few steps fill it.
_FIRST_PART = 0.4
_PASSES = 5
# A rough guess, only for the order in which operations are tried.
_BYTES_PER_OPERATION = 1 / 8
_CUDA_REPEATS = 10
# Seconds below which no clock counts.
_OVER_NOTHING = 1e-9


class Prepared(NamedTuple):
    """An operation that can be called: its function, and its arguments in the layers that are alike."""

    function: Callable[..., Any]
    arguments: list[tuple[list[Any], dict[str, Any]]]


class Replay:
    """Times the distinct operations of one microbatch of a measured step.

    `held_bytes` limits the results that are kept alive. `note` is called with each operation before its first call, so
    that a crash can be blamed.
    """

    def __init__(
        self,
        measurement: Measurement,
        device: torch.device,
        *,
        threads: int = 1,
        held_bytes: int = 1 << 33,
        skipped: Iterable[int] = (),
        note: Callable[[int], object] = int,
    ) -> None:
        self._operations = measurement.operations
        self._device = device
        self._held_bytes = held_bytes
        self._note = note
        self._threads = threads
        # One thread's own time: what other programs of the machine take is not counted.
        self._clock = time.thread_time if threads == 1 and device.type == "cpu" else time.perf_counter
        self._overhead_s = _overhead_s(self._clock)
        self._tensors = Tensors(device, Counter(sorted_shape(parameter.shape) for parameter in measurement.parameters))
        self._calls = _chosen(measurement, set(skipped))
        # Later microbatches add their gradients to those of the first, and free them.
        self._keeps_gradients = measurement.microbatches == 1
        self._turns = _turns(measurement, self._calls)
        self._ready: dict[int, Prepared] = {}
        self._samples: dict[int, list[float]] = defaultdict(list)
        # By the clock, operations took so many times the seconds that `run` returns.
        self.slowdown = 1.0

    def run(self, budget_s: float) -> dict[int, float]:
        """Return the seconds of one call of each operation that could be called within the budget.

        The budget is processor time, because a busy machine gives no result otherwise. One pass in the order of the
        step is made in any case: a first call finds memory that the machine has not used yet, and may take many times
        as long as those of a training.
        """
        start, own = time.perf_counter(), time.thread_time()
        seconds = self._replayed(budget_s)
        if self._device.type != "cpu":
            return seconds
        # A thread that waits for a processor, or for another thread that does, uses no time of its own.
        self.slowdown = max(1.0, (time.perf_counter() - start) / max(time.thread_time() - own, _OVER_NOTHING))
        if self._threads == 1 or self.slowdown <= QUIET_SLOWDOWN:
            return seconds
        return self._at_most_alone(seconds)

    def _at_most_alone(self, seconds: dict[int, float]) -> dict[int, float]:
        """Return the seconds of a busy machine without the waits of threads for each other: at most those of one."""
        self._clock = time.thread_time
        self._samples.clear()
        torch.set_num_threads(1)
        for _ in range(2):
            self._pass(1)
        torch.set_num_threads(self._threads)
        quiet = {index: min([value, *self._samples[index]]) for index, value in seconds.items()}
        counts = Counter(index for index, _ in self._calls)
        before, after = (sum(counts[index] * value for index, value in one.items()) for one in (seconds, quiet))
        self.slowdown = max(self.slowdown, before / max(after, _OVER_NOTHING))
        return quiet

    def _replayed(self, budget_s: float) -> dict[int, float]:
        began = time.process_time()
        first = self._try_each(began + _FIRST_PART * budget_s)
        if self._device.type != "cpu":
            return first
        self._enlarge(first)
        left_s = budget_s - (time.process_time() - began)
        limit = self._limit(first, left_s / _PASSES)
        for number in range(_PASSES):
            if number and time.process_time() - began > budget_s:
                break
            self._pass(limit)
        return first | {operation: median(samples) for operation, samples in self._samples.items()}

    def _try_each(self, until: float) -> dict[int, float]:
        """Call each operation, the largest work of the step first; the second call counts."""
        counts = Counter(operation for operation, _ in self._calls)
        seconds = {}
        for index in sorted(counts, key=lambda index: -counts[index] * _work(self._operations[index])):
            if time.process_time() > until:
                break
            self._note(index)
            # Random values may be illegal arguments, for which an operation may raise anything. The rate of its kind
            # serves for such an operation.
            with contextlib.suppress(Exception):
                if (ready := self._prepared(self._operations[index])) is not None:
                    self._timed(ready, 0)
                    seconds[index] = self._timed(ready, 0)[0]
                    self._ready[index] = ready
        return seconds

    def _limit(self, seconds: dict[int, float], pass_s: float) -> int:
        """Return the number of calls of each operation in a pass of so many seconds, at least one."""
        counts = Counter(operation for operation, _ in self._calls if operation in seconds)
        limit = 1
        for more in (2, 4, 8, 16, 64):
            if sum(min(count, more) * seconds[index] for index, count in counts.items()) <= pass_s:
                limit = more
        return limit

    def _pass(self, limit: int) -> None:
        """Call the operations in the order of the step; each one at most `limit` times."""
        called: Counter[int] = Counter()
        results = _Results(sum(phase == Phase.BACKWARD for _, phase in self._calls))
        gradients: list[tuple[int, Any]] = []
        held = 0
        before: Any = None
        for index, phase in self._calls:
            if phase == Phase.BACKWARD:
                results.backward()
            if (ready := self._ready.get(index)) is None or called[index] >= limit:
                continue
            # The backward begins with the last layer.
            layer = called[index] if phase != Phase.BACKWARD else -1 - called[index]
            called[index] += 1
            try:
                seconds, result = self._timed(ready, layer)
            except Exception:  # noqa: BLE001 - an operation may raise anything
                # Random values that were legal in the first layer may not be so in this one. The first time serves.
                del self._ready[index]
                continue
            start = self._clock()
            if phase == Phase.FORWARD and results.held < self._held_bytes:
                results.hold(result)
            elif self._is_kept(phase, result) and results.held + held < self._held_bytes:
                # Memory that is used again would be warm, and that of gradients is not.
                gradients.append((index, result))
                held += _bytes(result)
            results.free()
            # An update needs a result until the next one is there, so that has memory of its own.
            before = result if phase == Phase.OPTIMIZER else None
            result = None
            # A step gives memory back, too.
            self._samples[index].append(seconds + max(0.0, self._clock() - start - self._overhead_s))
        del before
        while gradients:
            index = gradients[-1][0]
            start = self._clock()
            gradients.pop()
            self._samples[index][-1] += max(0.0, self._clock() - start - self._overhead_s)

    def _is_kept(self, phase: Phase, result: Any) -> bool:
        return phase == Phase.BACKWARD and self._keeps_gradients and self._tensors.is_parameters(result)

    def _timed(self, ready: Prepared, layer: int) -> tuple[float, Any]:
        args, kwargs = ready.arguments[layer % len(ready.arguments)]
        if self._device.type == "cuda":
            return self._timed_on_gpu(ready.function, args, kwargs)
        start = self._clock()
        result = ready.function(*args, **kwargs)
        return max(0.0, self._clock() - start - self._overhead_s), result

    def _timed_on_gpu(self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> tuple[float, Any]:
        # Several calls in a row, as in a step: their launches overlap with the work before them.
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(_CUDA_REPEATS):
            result = function(*args, **kwargs)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000 / _CUDA_REPEATS, result

    def _prepared(self, operation: Operation) -> Prepared | None:
        if not operation.arguments:
            return None
        function: Any = torch.ops
        for part in operation.name.split("."):
            function = getattr(function, part)
        return Prepared(function, [self._arguments(operation, 0)])

    def _arguments(self, operation: Operation, layer: int, *, added: bool = False) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments in one of the layers that are alike; `added` where a fresh gradient is added up."""
        args, kwargs = json.loads(operation.arguments)
        turn = self._turns.get(operation)
        decode = Decoding(self._tensors, limit_of_indices(operation.name, args), layer, 1 if added else None, turn)
        return [decode(arg) for arg in args], {name: decode(value) for name, value in kwargs.items()}

    def _enlarge(self, seconds: dict[int, float]) -> None:
        """Give each operation on weights those of other layers, too, as many as are called in a step."""
        counts = Counter(self._calls)
        for (index, phase), count in counts.items():
            if index not in seconds:
                continue
            operation = self._operations[index]
            # Where tensors take turns, each of their places has copies of its own.
            turn = self._turns.get(operation)
            layers = min(count, max(1, self._tensors.layers(operation) // (turn.tensors if turn is not None else 1)))
            added = phase == Phase.BACKWARD and len(operation.shapes) > 1 and len(set(operation.shapes)) == 1
            self._ready[index].arguments.extend(
                self._arguments(operation, layer, added=added) for layer in range(1, layers)
            )


def _chosen(measurement: Measurement, skipped: set[int]) -> list[tuple[int, Phase]]:
    """Return the operations of one microbatch and of the optimizer, in the order of the step.

    It is the last microbatch, because the gradients of later ones are added to those of the first.
    """
    calls = [call for call in measurement.calls if call.phase in _PHASES and call.operation not in skipped]
    last = max((call.microbatch for call in calls), default=0)
    there = {call.operation for call in calls if call.microbatch == last}
    return [(call.operation, call.phase) for call in calls if call.microbatch == last or call.operation not in there]


def _turns(measurement: Measurement, calls: list[tuple[int, Phase]]) -> dict[Operation, Turn]:
    """Return the places of the optimizer's operations: a parameter, its gradient and its states take turns in them."""
    states = {
        parameter.shape: 2 + parameter.state_bytes // max(1, parameter.bytes) for parameter in measurement.parameters
    }
    turns: dict[Operation, Turn] = {}
    numbers: Counter[tuple[int, ...]] = Counter()
    for index, phase in calls:
        operation = measurement.operations[index]
        shape = operation.shapes[0] if operation.shapes else ()
        if phase == Phase.OPTIMIZER and shape in states and operation not in turns:
            turns[operation] = Turn(numbers[shape], states[shape])
            numbers[shape] += 1
    return turns


class _Results:
    """The results of a forward, which the operations of its backward free in reverse order."""

    def __init__(self, backwards: int) -> None:
        self._backwards, self._done = backwards, 0
        self._kept: list[tuple[Any, int]] = []
        self._forwards = 0
        self.held = 0

    def hold(self, result: Any) -> None:
        """Keep a result of the forward."""
        size = _bytes(result)
        self.held += size
        self._kept.append((result, size))
        self._forwards = len(self._kept)

    def backward(self) -> None:
        """Count an operation of the backward."""
        self._done += 1

    def free(self) -> None:
        """Free what the operations of the backward so far need no longer."""
        while self._done and len(self._kept) > self._forwards * (1 - self._done / self._backwards):
            self.held -= self._kept.pop()[1]


def _work(operation: Operation) -> float:
    return max(operation.operations * _BYTES_PER_OPERATION, float(operation.moved_bytes))


def _bytes(result: Any) -> int:
    results = result if isinstance(result, (list, tuple)) else (result,)
    return sum(item.numel() * item.element_size() for item in results if isinstance(item, torch.Tensor))


def _overhead_s(clock: Callable[[], float]) -> float:
    """Return the time that reading the clock adds to what it times."""
    return median(after - before for before, after in pairwise([clock() for _ in range(200)]))
