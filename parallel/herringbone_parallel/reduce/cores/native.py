"""Calls the compiled core (`native/`) through ctypes; the structures mirror those of `native/reduce.h`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from pathlib import Path

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores.base import CoreConfig, LinkCount, Submission
from herringbone_parallel.reduce.cores.cut import Lane

_ABI = 4
# Python handles Ctrl-C only between its own instructions, so a wait in C returns to Python this often.
_SLICE_SECONDS = 0.2


class _LinkSpec(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("descriptor", "role", "index", "unused")),
        ("label", c_char_p),
        ("outbox", c_uint64),
        ("inbox", c_uint64),
    )


class _Config(Structure):
    _fields_ = (
        ("label", c_char_p),
        *((name, c_int32) for name in ("member", "members", "helpers", "local_rank", "local_ranks", "lanes")),
        *((name, c_uint32) for name in ("chunk_bytes", "ring_bytes", "max_chunks")),
        *((name, c_uint32) for name in ("local_ring_bytes", "local_max_chunks", "links")),
        ("silence", c_double),
        ("late", c_double),
        ("specs", POINTER(_LinkSpec)),
    )


class _Shard(Structure):
    _fields_ = (("lane", c_uint32), ("server", c_uint32), ("offset", c_uint64), ("count", c_uint64))


class _Submission(Structure):
    _fields_ = (
        ("address", c_uint64),
        ("count", c_uint64),
        *((name, c_uint32) for name in ("element", "wire", "chunk", "window", "host_divisor")),
        ("divisor", c_float),
        ("cut", POINTER(_Shard)),
        ("shards", c_uint64),
    )


class _Count(Structure):
    _fields_ = tuple((name, c_uint64) for name in ("sent_bytes", "received_bytes", "sent_chunks", "received_chunks"))


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled library, or None if there is none for this system and this version."""
    # Imported here: `python -m` warns if the module that it runs has been imported before.
    from herringbone_parallel.reduce.build import LIBRARY

    path = Path(__file__).parents[1] / LIBRARY
    if not path.exists():
        return None
    try:
        core = ctypes.CDLL(str(path))
    except OSError:
        return None  # compiled for another system or C library: a package folder that is mounted into an image
    core.hb_abi.restype = c_int
    if core.hb_abi() != _ABI:
        return None
    handle = c_void_p
    # Without declared types, ctypes passes pointers as 32-bit integers.
    for name, result, arguments in (
        ("hb_new", handle, [POINTER(_Config)]),
        ("hb_submit", c_int64, [handle, POINTER(_Submission)]),
        ("hb_wait", c_int, [handle, c_uint64, c_double]),
        ("hb_done", c_int, [handle, c_uint64]),
        ("hb_ended", c_int, [handle]),
        ("hb_failure", c_int, [handle, c_char_p, c_uint32]),
        ("hb_completions", c_int, [handle]),
        ("hb_counts", None, [handle, POINTER(_Count)]),
        ("hb_close", None, [handle]),
        ("hb_free", None, [handle]),
    ):
        function = getattr(core, name)
        function.restype, function.argtypes = result, arguments
    return core


@cache
def _cut(lanes: tuple[Lane, ...]) -> ctypes.Array[_Shard]:
    flat = [(number, shard.server, shard.offset, shard.count) for number, lane in enumerate(lanes) for shard in lane]
    return (_Shard * len(flat))(*(_Shard(*one) for one in flat))


class NativeCore:
    """One I/O thread in C; `base.Core` documents the methods."""

    def __init__(self, config: CoreConfig) -> None:
        loaded = library()
        assert loaded is not None
        self._library = loaded
        self._process = os.getpid()
        # `hb_counts` fills its array in this order.
        self._labels = [link.label for link in config.links]
        specs = (_LinkSpec * len(config.links))(
            *(
                _LinkSpec(link.descriptor, link.role, link.index, 0, link.label.encode(), link.outbox, link.inbox)
                for link in config.links
            )
        )
        native_config = _Config(
            config.label.encode(),
            *(config.member, config.members, config.helpers, config.local, config.locals, config.lanes),
            *(config.chunk_bytes, config.limit.ring, config.limit.chunks),
            *(config.local_limit.ring, config.local_limit.chunks, len(specs)),
            *(config.silence, config.late, specs),
        )
        self._core: int | None = loaded.hb_new(byref(native_config))
        if self._core is None:
            raise ParallelError("the native core could not start: too little memory, or too many open files")

    def submit(self, submission: Submission) -> int:
        cut = _cut(submission.lanes)
        sizes = (
            *(submission.address, submission.count, submission.element, submission.wire),
            *(submission.chunk, submission.window),
        )
        request = _Submission(*sizes, submission.host_divisor, submission.divisor, cut, len(cut))
        number = int(self._library.hb_submit(self._core, byref(request)))
        # Negative after a failure or after `close`.
        if number < 0:
            raise ParallelError(self.failure() or "the engine is closed")
        return number

    def wait(self, sequence: int, timeout: float | None) -> bool:
        left = float("inf") if timeout is None else timeout
        while not self._library.hb_wait(self._core, sequence, max(min(left, _SLICE_SECONDS), 0.0)):
            left -= _SLICE_SECONDS
            if left <= 0 or self.ended():
                return self.done(sequence)
        return True

    def done(self, sequence: int) -> bool:
        return bool(self._library.hb_done(self._core, sequence))

    def failure(self) -> str | None:
        text = ctypes.create_string_buffer(4096)
        if not self._library.hb_failure(self._core, text, len(text)):
            return None
        return text.value.decode(errors="replace")

    def counts(self) -> list[LinkCount]:
        counts = (_Count * len(self._labels))()
        self._library.hb_counts(self._core, counts)
        return [
            LinkCount(label, count.sent_bytes, count.received_bytes, count.sent_chunks, count.received_chunks)
            for label, count in zip(self._labels, counts, strict=True)
        ]

    def completions(self) -> int:
        return int(self._library.hb_completions(self._core))

    def ended(self) -> bool:
        return bool(self._library.hb_ended(self._core))

    def close(self) -> None:
        self._library.hb_close(self._core)

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # Not in `close`: handles still query a closed core. A forked child must not close its parent's connections.
        # `os` is a default, because names of modules are gone when Python ends.
        if getattr(self, "_core", None) is not None and self._process == getpid():
            self._library.hb_close(self._core)
            self._library.hb_free(self._core)
