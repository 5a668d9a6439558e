"""Call the operations of a measured step again, with random tensors, and time them.

    replay = Replay(measurement, device=torch.device("cpu"), threads=1)
    replay.run(budget_s=20.0)           # {operation: seconds of one call}

Operations run in the order of the step, and their results live about as long as in the step. Calls of one operation in
a row would find their tensors in the cache and their memory in the allocator: they are up to a quarter faster than in
training.
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

from herringbone_parallel.core.prediction.measurement import Measurement, Operation, Phase

_PHASES = (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD, Phase.BETWEEN, Phase.OPTIMIZER)
# The first half of the budget finds out what operations cost; few steps fill it.
_FIRST_PART = 0.4
_PASSES = 5
# A rough guess, only for the order in which operations are tried.
_BYTES_PER_OPERATION = 1 / 8
_CUDA_REPEATS = 10


class Prepared(NamedTuple):
    """An operation that can be called: its function and its arguments."""

    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]


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
        # One thread's own time: what other programs of the machine take is not counted.
        self._clock = time.thread_time if threads == 1 and device.type == "cpu" else time.perf_counter
        self._overhead_s = _overhead_s(self._clock)
        self._tensors = _Tensors(device)
        skipped = set(skipped)
        self._calls = [
            (call.operation, call.phase)
            for call in measurement.calls
            if call.phase in _PHASES and call.microbatch == 0 and call.operation not in skipped
        ]
        self._ready: dict[int, Prepared] = {}
        self._samples: dict[int, list[float]] = defaultdict(list)

    def run(self, budget_s: float) -> dict[int, float]:
        """Return the seconds of one call of each operation that could be called within the budget.

        The budget is processor time, because a busy machine gives no result otherwise.
        """
        began = time.process_time()
        first = self._try_each(began + _FIRST_PART * budget_s)
        if self._device.type != "cpu":
            return first
        left_s = budget_s - (time.process_time() - began)
        limit = self._limit(first, left_s / _PASSES)
        for _ in range(_PASSES):
            if time.process_time() - began > budget_s:
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
                    self._timed(ready)
                    seconds[index] = self._timed(ready)[0]
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
        results: list[tuple[Any, int]] = []
        held = 0
        backwards = sum(phase == Phase.BACKWARD for _, phase in self._calls)
        forwards, done = 0, 0
        for index, phase in self._calls:
            done += phase == Phase.BACKWARD
            if (ready := self._ready.get(index)) is None or called[index] >= limit:
                continue
            called[index] += 1
            seconds, result = self._timed(ready)
            self._samples[index].append(seconds)
            if phase == Phase.FORWARD and held < self._held_bytes:
                size = _bytes(result)
                held += size
                results.append((result, size))
                forwards = len(results)
            # The backward frees the results of the forward in reverse order.
            while phase == Phase.BACKWARD and results and len(results) > forwards * (1 - done / backwards):
                held -= results.pop()[1]
            result = None

    def _timed(self, ready: Prepared) -> tuple[float, Any]:
        if self._device.type == "cuda":
            return self._timed_on_gpu(ready)
        start = self._clock()
        result = ready.function(*ready.args, **ready.kwargs)
        return max(0.0, self._clock() - start - self._overhead_s), result

    def _timed_on_gpu(self, ready: Prepared) -> tuple[float, Any]:
        # Several calls in a row, as in a step: their launches overlap with the work before them.
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(_CUDA_REPEATS):
            result = ready.function(*ready.args, **ready.kwargs)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000 / _CUDA_REPEATS, result

    def _prepared(self, operation: Operation) -> Prepared | None:
        if not operation.arguments:
            return None
        function: Any = torch.ops
        for part in operation.name.split("."):
            function = getattr(function, part)
        args, kwargs = json.loads(operation.arguments)
        below = _below(operation.name, args)
        used: Counter[str] = Counter()
        decoded = self._tensors.decoded(args, used, below)
        return Prepared(function, decoded, {name: self._tensors.decoded(v, used, below) for name, v in kwargs.items()})


class _Tensors:
    """Random tensors, shared by all operations: one for each distinct description and position among its equals."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[tuple[str, int, int], torch.Tensor] = {}

    def decoded(self, value: Any, used: Counter[str], below: int) -> Any:
        """Return the argument that `Operation.arguments` describes."""
        if isinstance(value, list):
            return [self.decoded(item, used, below) for item in value]
        if not isinstance(value, dict):
            return value
        if "tensor" in value:
            key = json.dumps(value)
            used[key] += 1
            position = (key, used[key], below)
            if position not in self._known:
                self._known[position] = self._made(value, below)
            return self._known[position]
        ((kind, text),) = value.items()
        if kind == "float":
            return float(text)
        return self._device if kind == "device" else getattr(torch, text)

    def _made(self, value: dict[str, Any], below: int) -> torch.Tensor:
        dtype, shape = getattr(torch, value["tensor"]), value["shape"]
        strides = value.get("strides")
        if strides is None or 0 in shape:
            return self._filled(shape, dtype, value.get("below", below))
        size = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        return torch.as_strided(self._filled([size], dtype, value.get("below", below)), shape, strides)

    def _filled(self, shape: list[int], dtype: torch.dtype, below: int) -> torch.Tensor:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.rand(shape, dtype=dtype, device=self._device)
        if dtype == torch.bool:
            return torch.rand(shape, device=self._device) < 0.9
        return torch.randint(max(1, below), shape, dtype=dtype, device=self._device)


def _below(name: str, args: list[Any]) -> int:
    """Return the limit of indices among an operation's arguments; 1 where it is not known, so that all are 0."""
    if name.startswith("aten.embedding_dense_backward"):
        return int(args[2])
    if name.startswith(("aten.embedding", "aten.index", "aten.nll_loss", "aten.gather")):
        shapes = [arg["shape"] for arg in args if isinstance(arg, dict) and "tensor" in arg]
        shape = next((shape for shape in shapes if len(shape) >= 2), [1])
        return int(shape[-1] if "nll_loss" in name else shape[0] if "gather" not in name else min(shape))
    return 1


def _work(operation: Operation) -> float:
    return max(operation.operations * _BYTES_PER_OPERATION, float(operation.moved_bytes))


def _bytes(result: Any) -> int:
    results = result if isinstance(result, (list, tuple)) else (result,)
    return sum(item.numel() * item.element_size() for item in results if isinstance(item, torch.Tensor))


def _overhead_s(clock: Callable[[], float]) -> float:
    """Return the time that reading the clock adds to what it times."""
    return median(after - before for before, after in pairwise([clock() for _ in range(200)]))
