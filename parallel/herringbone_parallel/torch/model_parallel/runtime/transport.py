"""Messages between the ranks of one pipeline: each has a key, and is delivered in whatever order it arrives.

A message is a header with its content behind it, on the CPU group (gloo); content that is too large for that follows as
a second message. One thread per peer receives its messages and hands them to `deliver`. So no rank has to know a shape
beforehand, and ranks may run their microbatches in different orders. CUDA tensors travel over NCCL, posted in the order
of their headers. Each directed pair of ranks has a communicator of its own, because opposite sends on a shared one
would deadlock on a stream.

    sender    header [+ content up to 512 KiB] --gloo, tag 0--> receiving thread of the peer --> deliver
              larger content              --gloo, own tag--> the same thread, which now knows shape and dtype
              content of a CUDA tensor    --NCCL of the pair-> the same thread

A sent tensor is referenced until the peer has received it. Each header counts the messages that its sender has
received, so traffic in the other direction releases sends. A peer that receives much and sends nothing says so.

Objects are pickled: the ranks of one job are one trust domain, as in `torch.distributed`'s own object collectives.
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
from herringbone_parallel.core.pipeline.sends import Sends
from herringbone_parallel.torch.model_parallel.runtime.messages import (
    CODES,
    DTYPES,
    VERDICTS,
    WITH_CONTENT,
    Key,
    Kind,
    Purpose,
)

# The timeout of a receive. A receiver may idle for as long as the user's script does other things.
NEVER = timedelta(days=365)
_GOODBYE_SECONDS = 10
_GOODBYE_SECONDS_AFTER_FAILURE = 2
_HEADER_TAG = 0
_TAGS = 2**30
_MAX_DIMENSIONS = 8
# kind, messages received from the peer, key (4 numbers), tag of the second message, whether there is one, dtype, number
# of dimensions, dimensions
_HEADER = struct.Struct(f"=10q{_MAX_DIMENSIONS}q")
# The content begins here, behind the header: 192 is a multiple of every dtype's size.
_CONTENT_START = 192
# gloo accepts a message that is smaller than the buffer prepared for it. Copying up to this much behind a header is
# cheaper than a second message; larger content is sent without a copy.
_INLINE_BYTES = 1 << 19
# Content of at least this size stays in the receive buffer. Smaller content is copied out: as a view it would keep the
# whole buffer alive.
_KEPT_BYTES = 1 << 15
# A rank that has received this much from a peer, and sent it nothing since, sends an empty message.
_ACKNOWLEDGED_BYTES = 1 << 20
# NCCL's sends are waited for when the bytes on their way reach this.
_REAPED_BYTES = 1 << 23


class _Message(NamedTuple):
    source: int
    key: Key
    content: Any


class _Send(NamedTuple):
    """A send under way. `tensor` is referenced until the work is done, because gloo reads its memory."""

    work: Any
    tensor: torch.Tensor


Deliver = Callable[[int, Key, Any], None]


class Transport:
    """Sends and receives for `rank`. `ranks` are the pipeline's global ranks; a peer is its index among them.

        transport = Transport(0, [0, 1], group)
        transport.listen(step, deliver)             # deliver(source, key, content), in a receiving thread
        transport.send_tensor(1, key, tensor)
        transport.release()                         # before the tensor changes
        transport.close(patient=True)

    Sending methods may be called from any thread. `pair_groups` are the NCCL groups by (source, target), needed for
    CUDA tensors only.
    """

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        group: dist.ProcessGroup,
        pair_groups: dict[tuple[int, int], dist.ProcessGroup] | None = None,
    ) -> None:
        self._ranks = list(ranks)
        self._rank = self._ranks.index(rank)
        self._group = group
        self._pair_groups = pair_groups or {}
        # Guards the sends: the members below. A thread may take it while it holds `_receive_lock`, never the reverse.
        self._send_lock = threading.Lock()
        self._next_tag = 1
        self._sends = Sends[_Send](self.peers)
        # NCCL's sends since the last `_reap`, and those that it waits for next. Their works do not end on the CPU.
        self._in_flight: list[_Send] = []
        self._leaving: list[_Send] = []
        self._bytes_in_flight = 0
        # By peer. The receiving thread of a peer counts; any sender reads the counts, and sets the bytes to zero.
        self._received = dict.fromkeys(self.peers, 0)
        self._unanswered_bytes = dict.fromkeys(self.peers, 0)
        # True while tensors of the caller are on their way, and not only copies of them.
        self._borrowed = False
        # Guards what the receiving threads share: the members below. `deliver` is called with it held, and takes the
        # run token's lock; the run token never calls the transport with its lock held.
        self._receive_lock = threading.Lock()
        self._step = 0
        self._closing = False
        self._loss: str | None = None
        self._departed: set[int] = set()
        self._deliver: Deliver | None = None
        # Messages of later steps, from peers that are ahead.
        self._early: list[_Message] = []
        # CUDA's current device is thread-local, so each receiving thread sets it again.
        self._cuda_device = torch.cuda.current_device() if pair_groups else None
        # One thread per peer: gloo's receive from any source may wait forever after a peer has died.
        self._threads = [
            threading.Thread(target=self._receive_from, args=(peer,), name=f"smp-receive-{peer}", daemon=True)
            for peer in self.peers
        ]
        for thread in self._threads:
            thread.start()

    @property
    def peers(self) -> list[int]:
        """The other ranks of the pipeline, by their index in it."""
        return [peer for peer in range(len(self._ranks)) if peer != self._rank]

    def departed(self) -> dict[int, str]:
        """Return the peers that will send nothing more in this step, each with the reason."""
        with self._receive_lock:
            ahead = {message.source: f"has gone on to step {message.key.step}" for message in self._early}
            return ahead | dict.fromkeys(self._departed, "has ended its script")

    def listen(self, step: int, deliver: Deliver) -> None:
        """Hand each message of this step to `deliver(source, key, content)`, first those that have arrived already.

        Messages of later steps are kept, because a peer may be ahead. Messages of earlier steps, left over from a
        failure, are dropped. Reports of a failure are the exception: their step may have gone well on this rank.
        """
        with self._receive_lock:
            self._step, self._deliver = step, deliver
            early, self._early = self._early, []
            for message in early:
                self._hand_on(message)
            self._report_loss()

    def send_tensor(self, peer: int, key: Key, tensor: torch.Tensor) -> None:
        """Start sending; the tensor must not change before `release`."""
        # Otherwise `detach` of a split module's parameter would be treated as an operation of the user's code.
        with torch._C.DisableTorchFunctionSubclass():
            tensor = tensor.detach()
        kind = Kind.CUDA if tensor.is_cuda else Kind.TENSOR
        self._send(peer, kind, key, tensor, CODES[tensor.dtype], tensor.shape)

    def send_object(self, peer: int, key: Key, content: Any) -> None:
        """Start sending a picklable object."""
        data = torch.frombuffer(bytearray(pickle.dumps(content)), dtype=torch.uint8)
        self._send(peer, Kind.OBJECT, key, data, CODES[torch.uint8], data.shape)

    def reap(self) -> None:
        """Release the memory of sends that have arrived."""
        with self._send_lock:
            arrived = self._sends.pop_acknowledged()
        _wait(arrived)
        if self._bytes_in_flight > _REAPED_BYTES:
            self._reap()

    def release(self) -> None:
        """Wait until no tensor of the caller is on its way."""
        if self._borrowed:
            self.flush()
        else:
            self.reap()

    def flush(self) -> None:
        """Wait until everything sent so far has left."""
        self._borrowed = False
        with self._send_lock:
            sent = self._sends.pop_all()
        # Without the lock: waiting may take long, and other threads send in the meantime.
        _wait(sent)
        # Each call waits for the sends before the previous call, so the second one waits for all.
        self._reap()
        self._reap()

    def _reap(self) -> None:
        """Wait for NCCL's sends that had begun before the last call of this method, and release their tensors."""
        with self._send_lock:
            leaving, self._leaving, self._in_flight = self._leaving, self._in_flight, []
            self._bytes_in_flight = 0
        for send in leaving:
            send.work.wait()

    def close(self, *, patient: bool) -> None:
        """Say goodbye to every peer, wait until all of them have said it too, and send each the last word.

        Pass `patient=False` after a failure: a peer may compute for long before it learns of it, so the wait is short.
        """
        with self._receive_lock:
            self._closing = True
            if self._loss is not None:
                return
            for peer in self.peers:
                self._send_empty(peer, Kind.GOODBYE)
            # Peers whose goodbye comes later get the last word from the receiving thread.
            for peer in self._departed:
                self._send_empty(peer, Kind.LAST_WORD)
        self.flush()
        deadline = time.monotonic() + (_GOODBYE_SECONDS if patient else _GOODBYE_SECONDS_AFTER_FAILURE)
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self.flush()
        # `deliver` references the last step, and so the whole state: groups would outlive their destruction.
        self._deliver = None

    def _send_empty(self, peer: int, kind: Kind) -> None:
        self._send(peer, kind, Key(0, 0, 0, 0), None, 0, ())

    def _send(
        self, peer: int, kind: Kind, key: Key, payload: torch.Tensor | None, dtype: int, shape: Sequence[int]
    ) -> None:
        if len(shape) > _MAX_DIMENSIONS:
            raise ParallelError(f"a tensor of {len(shape)} dimensions cannot be sent; at most {_MAX_DIMENSIONS}")
        inline_bytes = 0 if payload is None or kind == Kind.CUDA else payload.numel() * payload.element_size()
        follows = kind == Kind.CUDA or inline_bytes > _INLINE_BYTES
        if payload is not None and follows:
            payload = payload.contiguous()
            inline_bytes = 0
        message = torch.empty(_CONTENT_START + inline_bytes, dtype=torch.uint8)
        if inline_bytes and payload is not None:
            message[_CONTENT_START:].view(payload.dtype).view(payload.shape).copy_(payload)
        # The lock spans both messages: over NCCL the receiver tells contents apart by the order of their headers only.
        with self._send_lock:
            tag = self._next_tag
            self._next_tag = self._next_tag % _TAGS + 1
            padding = (0,) * (_MAX_DIMENSIONS - len(shape))
            received, self._unanswered_bytes[peer] = self._received[peer], 0
            header = (kind, received, *key, tag, follows, dtype, len(shape), *shape, *padding)
            _HEADER.pack_into(_bytes(message), 0, *header)
            # An unfinished send must stay referenced, work and tensor: gloo's matching of messages breaks for good when
            # one of them is dropped.
            works: list[_Send] = []
            # gloo refuses to send to a peer that is gone. The thread that receives from it notices that as well, and
            # reports it; the other peers have to get their messages.
            with suppress(RuntimeError):
                works.append(_Send(self._group.send([message], peer, _HEADER_TAG), message))
                if payload is not None and follows and kind != Kind.CUDA:
                    self._borrowed = True
                    works.append(_Send(self._group.send([payload], peer, tag), payload))
            if payload is not None and works and kind == Kind.CUDA:
                self._borrowed = True
                work = dist.isend(payload, self._ranks[peer], group=self._pair_groups[self._rank, peer])
                self._in_flight.append(_Send(work, payload))
                self._bytes_in_flight += payload.numel() * payload.element_size()
            self._sends.add(peer, works)
            # Here and not in a receiving thread, which would delay messages while it waits for the interpreter.
            arrived = self._sends.pop_acknowledged()
        _wait(arrived)

    def _receive_from(self, peer: int) -> None:
        """Receive the messages of one peer until its last word. Runs in the peer's own thread."""
        if self._cuda_device is not None:
            torch.cuda.set_device(self._cuda_device)
        buffer: torch.Tensor | None = torch.empty(_CONTENT_START + _INLINE_BYTES, dtype=torch.uint8)
        try:
            while buffer is not None:
                _receive(buffer, peer, self._group, _HEADER_TAG)
                # In a method of its own, whose variables do not keep the content until the next message comes.
                buffer = self._take(peer, buffer)
        except _PeerGoneError as error:
            # While closing, a peer may be gone before its last word has arrived.
            if not self._closing:
                self._lose(f"lost contact with pipeline rank {peer} (rank {self._ranks[peer]}): {error}")
        except Exception as error:  # noqa: BLE001  a step would wait for ever for the message that ended this thread
            self._lose(f"a message of pipeline rank {peer} cannot be read: {type(error).__name__}: {error}")

    def _take(self, peer: int, buffer: torch.Tensor) -> torch.Tensor | None:
        """Deliver the message in the buffer. Returns the buffer for the next one; None after a peer's last word."""
        kind, arrived, step, microbatch, serial, purpose, *header = _HEADER.unpack_from(_bytes(buffer))
        self._sends.acknowledge(peer, arrived)
        if kind == Kind.LAST_WORD:
            return None
        if kind == Kind.GOODBYE:
            self._note_goodbye(peer)
        content = self._content(peer, kind, header, buffer) if kind in WITH_CONTENT else None
        self._received[peer] += 1
        if kind not in WITH_CONTENT:
            return buffer
        if isinstance(content, torch.Tensor) and content.untyped_storage().data_ptr() == buffer.data_ptr():
            # The content stays where it is, so the next message needs another buffer.
            buffer = torch.empty_like(buffer)
        with self._receive_lock:
            self._hand_on(_Message(peer, Key(step, microbatch, serial, purpose), content))
        if kind != Kind.CUDA:
            # NCCL's sends need no answer, and one of them may hold `_send_lock` until this thread receives again.
            self._answer(peer, header)
        return buffer

    def _answer(self, peer: int, header: Sequence[int]) -> None:
        """Say that messages have arrived, if this rank has sent nothing since many bytes of them did."""
        _, _, code, dimensions, *shape = header
        # The header counts: the peer holds it, too, and many messages are smaller.
        self._unanswered_bytes[peer] += _CONTENT_START + DTYPES[code].itemsize * math.prod(shape[:dimensions])
        if self._unanswered_bytes[peer] >= _ACKNOWLEDGED_BYTES and not self._closing:
            self._send_empty(peer, Kind.RECEIVED)

    def _note_goodbye(self, peer: int) -> None:
        with self._receive_lock:
            self._departed.add(peer)
            if self._closing:
                # A goodbye that comes too late finds the group destroyed on this rank.
                with suppress(ValueError):
                    self._send_empty(peer, Kind.LAST_WORD)

    def _lose(self, reason: str) -> None:
        with self._receive_lock:
            self._loss = reason
            self._report_loss()

    def _report_loss(self) -> None:
        """Deliver a lost connection as a failure that this rank reports to itself. Requires `_receive_lock`."""
        if self._loss is not None and self._deliver is not None:
            self._deliver(self._rank, Key(self._step, 0, 0, Purpose.FAILURE), self._loss)

    def _hand_on(self, message: _Message) -> None:
        """Deliver, keep or drop a message, according to its step. Requires `_receive_lock`."""
        source, key, content = message
        if key.step > self._step:
            self._early.append(message)
        elif self._deliver is not None and (key.step == self._step or key.purpose in VERDICTS):
            self._deliver(source, key, content)

    def _content(self, peer: int, kind: int, header: Sequence[int], buffer: torch.Tensor) -> Any:
        """Return the content behind the header in the buffer, or receive it; large content stays in the buffer.

        `header` is the part of the header from the tag on.
        """
        tag, follows, code, dimensions, *shape = header
        dtype, shape = DTYPES[code], shape[:dimensions]
        if kind == Kind.CUDA:
            assert self._cuda_device is not None
            content = torch.empty(shape, dtype=dtype, device=torch.device("cuda", self._cuda_device))
            _receive(content, self._pair_index(peer), self._pair_groups[peer, self._rank], 0)
            return content
        if follows:
            content = torch.empty(shape, dtype=dtype)
            _receive(content, peer, self._group, tag)
        else:
            size = dtype.itemsize * math.prod(shape)
            content = buffer[_CONTENT_START : _CONTENT_START + size]
            content = (content if size >= _KEPT_BYTES else content.clone()).view(dtype).view(shape)
        return pickle.loads(_bytes(content)) if kind == Kind.OBJECT else content  # noqa: S301  same trust domain

    def _pair_index(self, peer: int) -> int:
        """Return the peer's rank in the group of this pair; a group numbers its ranks in ascending order."""
        return int(self._ranks[peer] > self._ranks[self._rank])


def _bytes(tensor: torch.Tensor) -> Any:
    """Return the tensor's memory as a buffer for `struct` and `pickle`."""
    return tensor.numpy()


def _wait(sends: Sequence[_Send]) -> None:
    """Wait for gloo's sends; they fail if the peer is gone. One that it has received takes half a microsecond."""
    for send in sends:
        with suppress(RuntimeError):
            send.work.wait()


class _PeerGoneError(Exception):
    """The backend reports that a peer is gone."""


def _receive(buffer: torch.Tensor, source: int, group: dist.ProcessGroup, tag: int) -> None:
    try:
        group.recv([buffer], source, tag).wait()
    except RuntimeError as error:
        raise _PeerGoneError(str(error).splitlines()[0]) from error
