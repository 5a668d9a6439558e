"""The engine that the framework adaptors use: it sums buffers over all ranks, in place and in the background."""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_contract.events import steps
from herringbone_parallel.core.sums.credits import Window
from herringbone_parallel.core.sums.links import Cost
from herringbone_parallel.reduce.cores import select as cores
from herringbone_parallel.reduce.cores.base import Core, CoreConfig, LinkCount, Submission
from herringbone_parallel.reduce.cores.cut import cut_lanes, most_elements
from herringbone_parallel.reduce.elements import Array, Element
from herringbone_parallel.reduce.join.settings import Settings
from herringbone_parallel.reduce.join.topology import Topology
from herringbone_parallel.reduce.join.windows import suited_window

OPS = ("sum", "average")


@dataclass(frozen=True, slots=True)
class Stats:
    """The work of an engine so far: buffers, traffic per connection, refused connections, seconds spent in `wait`."""

    core: str
    buffers: int
    links: tuple[LinkCount, ...]
    refused: int
    waited_seconds: float

    @property
    def sent_bytes(self) -> int:
        """The bytes sent over all connections."""
        return sum(link.sent_bytes for link in self.links)

    @property
    def received_bytes(self) -> int:
        """The bytes received over all connections."""
        return sum(link.received_bytes for link in self.links)


class Resource(Protocol):
    """Something that an engine needs as long as its core runs: shared memory, rails."""

    def close(self) -> None:
        """Release it."""


class Engine:
    """One rank's part in the sums; `join` makes it, `close` ends it in good order.

        handles = [engine.all_reduce(bucket, op="average") for bucket in buckets]
        for handle in handles:
            handle.wait()

    Every rank submits the same buffers in the same order. Do not read or write a buffer before its handle is done. Once
    a process of the job is lost, every call raises the same `ParallelError`. All methods may be called from any thread.
    """

    def __init__(
        self,
        config: CoreConfig,
        core: str,
        settings: Settings,
        topology: Topology,
        resources: Sequence[Resource],
        window: Window,
        refused: int,
    ) -> None:
        self.rank, self.size = settings.rank, settings.size
        self.local_rank, self.local_size = config.local, config.locals
        self.topology = topology
        self.settings = settings
        self._config, self._resources, self._refused = config, tuple(resources), refused
        self._window = window
        self._core_name = core
        self._core = cores.make(core, config)
        # Closes the core also when the script ends without `close`: a process that ends without LEAVE looks lost.
        self._leave = weakref.finalize(self, _close, self._core, os.getpid())
        self._process = os.getpid()
        # Guards `_window`, `_alive`, `_callbacks`, `_watcher`, and the order of submissions.
        self._lock = threading.Lock()
        # The core has only addresses: these references keep the buffers alive until they are done, also if the caller
        # drops the handle.
        self._alive: dict[int, object] = {}
        self._buffers = 0
        self._waited = 0.0
        self._callbacks: dict[int, list[Callable[[Handle], None]]] = {}
        self._watcher: threading.Thread | None = None

    def all_reduce(
        self,
        buffer: Array | int,
        count: int | None = None,
        dtype: str | None = None,
        *,
        op: str = "sum",
        wire: str | None = None,
    ) -> Handle:
        """Start the sum, or the average, of a flat buffer over all ranks, in place.

            engine.all_reduce(np.ones(1_000, np.float32)).wait()
            engine.all_reduce(tensor.data_ptr(), tensor.numel(), "bfloat16", op="average").wait()

        An address needs `count` and `dtype`; keep its memory until the handle is done. `wire`, "fp16" or "bf16", is the
        format in which fp32 travels between hosts in this call; sums are always computed in fp32. fp16 and bf16
        travel as they are, except that the sum over several ranks of a host travels as fp32, unless the settings name
        another format. All ranks get the same bits.

        Raises `ParallelError` for a buffer that cannot be summed, and after the engine has stopped.
        """
        if os.getpid() != self._process:
            raise ParallelError("this process was forked from a rank: it cannot use the rank's connections")
        address, count, element = _locate(buffer, count, dtype)
        if op not in OPS:
            raise ParallelError(f"op {op!r}: it is one of {', '.join(OPS)}")
        if op == "average" and not element.is_float:
            raise ParallelError(f"an average of {element.name.lower()}: only floating point can be averaged")
        config = self._config
        lanes = cut_lanes(count, config.lanes, config.members, config.helpers, self.settings.message)
        on_wire = self._wire(element, wire)
        host_divisor = self._host_divisor(on_wire) if op == "average" else 1
        divisor = self.size / host_divisor if op == "average" else 1
        with self._lock:
            chunk = most_elements(lanes, on_wire.size, self._window, config.members)
            window = self._window.under_way(chunk * on_wire.size)
            submission = Submission(address, count, element, on_wire, host_divisor, divisor, chunk, window, lanes)
            number = self._core.submit(submission)
            self._buffers = number + 1
            # Buffers end nearly in order, so looking at the oldest ones is enough, and costs little per submission.
            while self._alive and self._core.done(oldest := next(iter(self._alive))):
                del self._alive[oldest]
            self._alive[number] = buffer
        steps.hand_over()
        return Handle(self, number)

    def suit(self, cost: Cost) -> None:
        """Choose the window for links on which sums have this cost, for all later buffers.

        All ranks call it between the same two buffers. A window that the user has set stays.
        """
        config = self._config
        if config.members == 1 or self.settings.window is not None or not cost.beta_s:
            return
        with self._lock:
            self._window = suited_window(config.members, config.helpers, cost)

    @property
    def window(self) -> Window:
        """The chunks that may be in flight to one server."""
        return self._window

    def stats(self) -> Stats:
        """Return the statistics so far."""
        return Stats(self._core_name, self._buffers, tuple(self._core.counts()), self._refused, self._waited)

    @property
    def failure(self) -> str | None:
        """The reason for which this engine stopped, or None."""
        return self._core.failure()

    def close(self) -> None:
        """Leave the other ranks after the submitted sums. A buffer that is not done then never will be."""
        self._leave()
        if self._watcher is not None:
            self._watcher.join()
        # After the core, whose I/O thread reads the shared memory and sends over the rails.
        for resource in self._resources:
            resource.close()
        self._resources = ()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an exception the rank does not leave: the others would report the early leave instead of the failure.
        if kind is None:
            self.close()

    def wait(self, number: int, timeout: float | None) -> None:
        """See `Handle.wait`."""
        began = time.monotonic()
        done = self._core.wait(number, timeout)
        self._waited += time.monotonic() - began
        if done:
            return
        if (failure := self._core.failure()) is not None:
            raise ParallelError(failure)
        if self._core.ended():
            raise ParallelError(f"the engine was closed before buffer {number} was summed")
        raise TimeoutError(f"buffer {number} is not summed after {timeout} s: a rank has not submitted it yet")

    def done(self, number: int) -> bool:
        """See `Handle.done`."""
        return self._core.done(number)

    def call_back(self, handle: Handle, callback: Callable[[Handle], None]) -> None:
        """See `Handle.add_callback`."""
        with self._lock:
            self._callbacks.setdefault(handle.number, []).append(callback)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="herringbone-callbacks", daemon=True)
                self._watcher.start()
            # The core does not notify the watcher again of a buffer that is done already.
            late = self._callbacks.pop(handle.number) if self._core.done(handle.number) else []
        for call in late:
            call(handle)

    def _watch(self) -> None:
        """Run the callbacks of buffers that are done; the body of the watcher thread."""
        poll = select.poll()
        poll.register(self._core.completions(), select.POLLIN)
        while True:
            # Before the callbacks are taken: a core that ends after this line wakes the poll below.
            ended = self._core.ended()
            with self._lock:
                ready = [number for number in self._callbacks if ended or self._core.done(number)]
                calls = [(number, self._callbacks.pop(number)) for number in sorted(ready)]
            # Without the lock: a callback may submit the next buffer.
            for number, callbacks in calls:
                for callback in callbacks:
                    callback(Handle(self, number))
            if ended:
                return
            if not calls:
                poll.poll()
                os.read(self._core.completions(), 4096)

    def _wire(self, element: Element, wire: str | None) -> Element:
        if wire is not None:
            wire_element = Element.named(wire)
            if wire_element not in (element, Element.FLOAT16, Element.BFLOAT16) or element is not Element.FLOAT32:
                raise ParallelError(f"{element.name.lower()} on a wire of {wire}: only float32 travels as fp16 or bf16")
            return wire_element
        default = self.settings.wire
        if element.size == 2 and default is None and self._sums_inside_hosts():
            # The sum over a host is an fp32 number: 16 bits would round it, and could overflow.
            return Element.FLOAT32
        return default if default is not None and element is Element.FLOAT32 else element

    def _sums_inside_hosts(self) -> bool:
        """Return True if the network carries sums over several ranks. Every rank returns the same."""
        return self.topology.size > self.topology.hosts > 1

    def _host_divisor(self, on_wire: Element) -> int:
        """Return the number that a host's sum is divided by before it travels in 16 bits, so that it fits into them.

        A power of two, because such a division is exact.
        """
        if on_wire.size > 2 or not on_wire.is_float or not self._sums_inside_hosts():
            return 1
        return 1 << (max(map(len, self.topology.ranks)) - 1).bit_length()


class Handle:
    """A sum in progress."""

    __slots__ = ("_engine", "number")

    def __init__(self, engine: Engine, number: int) -> None:
        self._engine, self.number = engine, number

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the sum to be in place.

        Raises `ParallelError` when a process of the job is lost, `TimeoutError` after `timeout` seconds.
        """
        self._engine.wait(self.number, timeout)

    def done(self) -> bool:
        """Return True if the sum is in place."""
        return self._engine.done(self.number)

    def add_callback(self, callback: Callable[[Handle], None]) -> None:
        """Call `callback` once the sum is in place or has failed; `wait` then returns or raises at once.

        The call comes from a thread of the engine, or at once if the sum is in place already.
        """
        self._engine.call_back(self, callback)


def _close(core: Core, process: int) -> None:
    """Close a core in the process that made it: a forked child has no copy of the I/O thread to wait for."""
    if os.getpid() == process:
        core.close()


def _locate(buffer: Array | int, count: int | None, dtype: str | None) -> tuple[int, int, Element]:
    """Return the address, the number of elements and the element type of a buffer."""
    if isinstance(buffer, int):
        if count is None or dtype is None:
            raise ParallelError("an address needs `count` and `dtype`")
        if count < 0 or (count and not buffer):
            raise ParallelError(f"{count} elements at address {buffer}")
        return buffer, count, Element.named(dtype)
    if not isinstance(buffer, np.ndarray):
        raise ParallelError(f"a buffer is a numpy array or an address, not {type(buffer).__name__}")
    if not buffer.flags.c_contiguous or not buffer.flags.writeable:
        raise ParallelError("a buffer is contiguous and writeable, because the sum replaces its values")
    if count is not None and count != buffer.size:
        raise ParallelError(f"count {count} for an array of {buffer.size} elements")
    element = Element.named(dtype or buffer.dtype.name)
    if element.stored != buffer.dtype:
        raise ParallelError(f"an array of {buffer.dtype} as {dtype}")
    return int(buffer.ctypes.data), int(buffer.size), element
