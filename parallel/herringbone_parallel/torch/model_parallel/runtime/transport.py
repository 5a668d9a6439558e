"""Messages between the ranks of one pipeline: keyed, delivered in any order to whoever waits for them.

A message is a header with its content behind it, on the CPU group (gloo); a content too large for that follows. One
thread per peer receives its messages and hands them to `deliver`. So nobody has to know a shape beforehand, and ranks
may run their microbatches in different orders. CUDA contents go over NCCL, one communicator per directed pair (opposite
sends on a shared one would deadlock on a stream), posted in the order of the headers.

Objects are pickled: ranks of one job are one trust domain, as in `torch.distributed`'s own object collectives.
"""

from __future__ import annotations

import math
import pickle
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from herringbone_contract.errors import ParallelError

# A receiver may idle for as long as the user's script does other things.
NEVER = timedelta(days=365)
_GOODBYE_SECONDS = 10
_GOODBYE_SECONDS_AFTER_FAILURE = 2
_HEADER_TAG = 0
_TAGS = 2**30
_MAX_DIMENSIONS = 8
# kind, key (4), tag of what follows, whether anything follows, dtype, number of dimensions, dimensions
_HEADER = struct.Struct(f"=9q{_MAX_DIMENSIONS}q")
# Where the content begins behind the header, aligned for every dtype.
_START = 192
# gloo takes a message that is smaller than what was prepared for it. To copy this much behind a header is cheaper than
# a second message, and what is larger goes without a copy.
_ROOM_BYTES = 1 << 19
# A content of this size stays in the buffer it came in; a smaller one is copied out, so as not to keep all the rest.
_KEPT_BYTES = 1 << 15
# What is on its way is looked after when it comes to this much: a look costs more than a small message holds.
_REAPED_BYTES = 1 << 23
# A goodbye says that nothing more is asked for, the last word that nothing more is answered either.
_TENSOR, _OBJECT, _CUDA, _GOODBYE, _LAST_WORD = range(5)
_DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}


class Key(NamedTuple):
    """What a message is: of which step and microbatch, the how-many-th value there, and for what."""

    step: int
    microbatch: int
    serial: int
    purpose: int


class Purpose:
    VALUE = 0
    GRADIENT = 1
    SHAPES = 2
    OUTPUT = 3
    RESULTS = 4
    FAILURE = 5
    # Of a step that stands still, see stall.py.
    PROBE = 6
    ENDED = 7
    DIVERGED = 8


# The end of the step, whatever else was to come.
VERDICTS = (Purpose.FAILURE, Purpose.DIVERGED)


Deliver = Callable[[int, Key, Any], None]
_Message = tuple[int, Key, Any]


class Transport:
    """The mail of one rank. `ranks` are the pipeline's global ranks; peers are named by their index in it."""

    def __init__(
        self,
        ranks: Sequence[int],
        group: dist.ProcessGroup,
        pair_groups: dict[tuple[int, int], dist.ProcessGroup] | None = None,
    ) -> None:
        self._ranks = list(ranks)
        self._me = self._ranks.index(dist.get_rank())
        self._group = group
        self._pair_groups = pair_groups or {}
        self._next_tag = 1
        self._lock = threading.Lock()
        self._mail_lock = threading.Lock()
        self._in_flight: list[tuple[Any, torch.Tensor | None]] = []
        self._leaving: list[tuple[Any, torch.Tensor | None]] = []
        self._bytes_in_flight = 0
        # Whether tensors of the caller's are on their way, and not copies alone.
        self._lent = False
        self._step = 0
        self._closing = False
        self._lost: str | None = None
        self._parted: set[int] = set()
        self._deliver: Deliver | None = None
        self._early: list[_Message] = []
        # CUDA's current device belongs to a thread.
        self._cuda_device = torch.cuda.current_device() if pair_groups else None
        # One thread per peer: gloo's receive from any source may wait for ever after a peer has died.
        self._threads = [
            threading.Thread(target=self._receive_from, args=(peer,), name=f"smp-mail-{peer}", daemon=True)
            for peer in self.peers
        ]
        for thread in self._threads:
            thread.start()

    @property
    def peers(self) -> list[int]:
        """The other ranks of the pipeline, by their index in it."""
        return [peer for peer in range(len(self._ranks)) if peer != self._me]

    def departed(self) -> dict[int, str]:
        """Return the peers that will send nothing more in this step, as they are further on, with what they did."""
        with self._mail_lock:
            ahead = {source: f"has gone on to step {key.step}" for source, key, _ in self._early}
            return ahead | dict.fromkeys(self._parted, "has ended its script")

    def listen(self, step: int, deliver: Deliver) -> None:
        """Hand each message of this step to `deliver(source, key, content)`, those already here first.

        Messages of later steps are kept: a peer may be ahead. Those of earlier ones, left by a failure, are dropped,
        but for the news of a failure in a step that went well here.
        """
        with self._mail_lock:
            self._step, self._deliver = step, deliver
            early, self._early = self._early, []
            for message in early:
                self._hand_on(message)
            self._report_loss()

    def send_tensor(self, peer: int, key: Key, tensor: torch.Tensor) -> None:
        """Start sending; the tensor must not change before `release`."""
        # A parameter of a split module would take this for the user's operation.
        with torch._C.DisableTorchFunctionSubclass():
            tensor = tensor.detach()
        kind = _CUDA if tensor.is_cuda else _TENSOR
        self._send(peer, kind, key, tensor, _CODES[tensor.dtype], tensor.shape)

    def send_object(self, peer: int, key: Key, content: Any) -> None:
        """Start sending a picklable object."""
        data = torch.frombuffer(bytearray(pickle.dumps(content)), dtype=torch.uint8)
        self._send(peer, _OBJECT, key, data, _CODES[torch.uint8], data.shape)

    def reap(self) -> None:
        """Let go, when it is worth it, of what has left long ago."""
        if self._bytes_in_flight > _REAPED_BYTES:
            self._reap()

    def release(self) -> None:
        """Wait until no tensor of the caller's is on its way."""
        if self._lent:
            self.flush()

    def flush(self) -> None:
        """Wait until everything sent so far has left."""
        self._lent = False
        self._reap()
        self._reap()

    def _reap(self) -> None:
        """Let go of what was sent before the last call of this."""
        with self._lock:
            leaving, self._leaving, self._in_flight = self._leaving, self._in_flight, []
            self._bytes_in_flight = 0
        for work, _ in leaving:
            work.wait()

    def close(self, *, patient: bool) -> None:
        """Say goodbye to every peer, wait until all have said it too, and have the last word with each.

        Without patience, after a failure, the wait is short: a peer may compute for long before it hears of it.
        """
        # A peer that is gone by now has no use for a goodbye.
        with suppress(RuntimeError):
            with self._mail_lock:
                self._closing = True
                if self._lost is not None:
                    return
                for peer in self.peers:
                    self._say(peer, _GOODBYE)
                for peer in self._parted:
                    self._say(peer, _LAST_WORD)
            self.flush()
            deadline = time.monotonic() + (_GOODBYE_SECONDS if patient else _GOODBYE_SECONDS_AFTER_FAILURE)
            for thread in self._threads:
                thread.join(timeout=max(0.0, deadline - time.monotonic()))
            if not any(thread.is_alive() for thread in self._threads):
                self.flush()
        # It knows the last step, and with it the whole state: groups would outlive their destruction.
        self._deliver = None

    def _say(self, peer: int, kind: int) -> None:
        self._send(peer, kind, Key(0, 0, 0, 0), None, 0, ())

    def _send(
        self, peer: int, kind: int, key: Key, payload: torch.Tensor | None, dtype: int, shape: Sequence[int]
    ) -> None:
        if len(shape) > _MAX_DIMENSIONS:
            raise ParallelError(f"a tensor of {len(shape)} dimensions cannot be sent; at most {_MAX_DIMENSIONS}")
        inside = 0 if payload is None or kind == _CUDA else payload.numel() * payload.element_size()
        follows = kind == _CUDA or inside > _ROOM_BYTES
        if payload is not None and follows:
            payload = payload.contiguous()
            inside = 0
        message = torch.empty(_START + inside, dtype=torch.uint8)
        if inside and payload is not None:
            message[_START:].view(payload.dtype).view(payload.shape).copy_(payload)
        # One at a time: the payloads of a pair travel in the order of their headers.
        with self._lock:
            tag = self._next_tag
            self._next_tag = self._next_tag % _TAGS + 1
            padding = (0,) * (_MAX_DIMENSIONS - len(shape))
            _HEADER.pack_into(_bytes(message), 0, kind, *key, tag, follows, dtype, len(shape), *shape, *padding)
            # An unfinished send keeps its work and tensor here: dropping them confuses gloo's matching for good.
            self._in_flight.append((self._group.send([message], peer, _HEADER_TAG), message))
            self._bytes_in_flight += message.numel()
            if follows:
                assert payload is not None
                self._lent = True
                self._bytes_in_flight += payload.numel() * payload.element_size()
                if kind == _CUDA:
                    work = dist.isend(payload, self._ranks[peer], group=self._pair_groups[self._me, peer])
                else:
                    work = self._group.send([payload], peer, tag)
                self._in_flight.append((work, payload))

    def _receive_from(self, peer: int) -> None:
        if self._cuda_device is not None:
            torch.cuda.set_device(self._cuda_device)
        buffer = torch.empty(_START + _ROOM_BYTES, dtype=torch.uint8)
        try:
            while True:
                _receive(buffer, peer, self._group, _HEADER_TAG)
                kind, step, microbatch, serial, purpose, *rest = _HEADER.unpack_from(_bytes(buffer))
                if kind == _LAST_WORD:
                    return
                if kind == _GOODBYE:
                    self._part(peer)
                    continue
                content = self._open(peer, kind, rest, buffer)
                if isinstance(content, torch.Tensor) and content.untyped_storage().data_ptr() == buffer.data_ptr():
                    buffer = torch.empty_like(buffer)
                with self._mail_lock:
                    self._hand_on((peer, Key(step, microbatch, serial, purpose), content))
        except _PeerGoneError as error:
            # Peers that have parted may be gone before the last goodbye is here.
            if not self._closing:
                with self._mail_lock:
                    self._lost = f"lost contact with pipeline rank {peer} (rank {self._ranks[peer]}): {error}"
                    self._report_loss()

    def _part(self, peer: int) -> None:
        with self._mail_lock:
            self._parted.add(peer)
            if self._closing:
                # It said goodbye too late, when the group was gone here.
                with suppress(RuntimeError, ValueError):
                    self._say(peer, _LAST_WORD)

    def _report_loss(self) -> None:
        if self._lost is not None and self._deliver is not None:
            self._deliver(self._me, Key(self._step, 0, 0, Purpose.FAILURE), self._lost)

    def _hand_on(self, message: _Message) -> None:
        source, key, content = message
        if key.step > self._step:
            self._early.append(message)
        elif self._deliver is not None and (key.step == self._step or key.purpose in VERDICTS):
            self._deliver(source, key, content)

    def _open(self, peer: int, kind: int, rest: Sequence[int], buffer: torch.Tensor) -> Any:
        """Return what came behind the header in the buffer, or comes after it; a large one may stay in the buffer."""
        tag, follows, code, dimensions, *shape = rest
        dtype, shape = _DTYPES[code], shape[:dimensions]
        if kind == _CUDA:
            assert self._cuda_device is not None
            content = torch.empty(shape, dtype=dtype, device=torch.device("cuda", self._cuda_device))
            _receive(content, self._pair_index(peer), self._pair_groups[peer, self._me], 0)
            return content
        if follows:
            content = torch.empty(shape, dtype=dtype)
            _receive(content, peer, self._group, tag)
        else:
            size = dtype.itemsize * math.prod(shape)
            content = buffer[_START : _START + size]
            content = (content if size >= _KEPT_BYTES else content.clone()).view(dtype).view(shape)
        return pickle.loads(_bytes(content)) if kind == _OBJECT else content  # noqa: S301  same trust domain

    def _pair_index(self, peer: int) -> int:
        # A group counts its ranks in ascending order.
        return int(self._ranks[peer] > self._ranks[self._me])


def _bytes(tensor: torch.Tensor) -> Any:
    """Return what `struct` and `pickle` take for a buffer."""
    return tensor.numpy()


class _PeerGoneError(Exception):
    """The backend says that a peer is gone."""


def _receive(buffer: torch.Tensor, source: int, group: dist.ProcessGroup, tag: int) -> None:
    try:
        group.recv([buffer], source, tag).wait()
    except RuntimeError as error:
        raise _PeerGoneError(str(error).splitlines()[0]) from error
