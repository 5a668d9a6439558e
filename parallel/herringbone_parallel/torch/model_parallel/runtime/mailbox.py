"""The messages of one microbatch: what it sends, and what it waits for with the baton handed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from herringbone_parallel.torch.model_parallel.runtime.transport import Key

if TYPE_CHECKING:
    from herringbone_parallel.torch.model_parallel.runtime.run_token import Baton, Turn
    from herringbone_parallel.torch.model_parallel.runtime.transport import Transport


class Post:
    """Sends and receives for one microbatch of one step; `rank` is this process's pipeline rank."""

    def __init__(self, rank: int, step: int, microbatch: int, transport: Transport | None, baton: Baton) -> None:
        self.rank = rank
        self._step = step
        self._microbatch = microbatch
        self._transport = transport
        self._baton = baton

    def send_tensor(self, peer: int, serial: int, purpose: int, tensor: torch.Tensor) -> None:
        assert self._transport is not None
        self._transport.send_tensor(peer, self._key(serial, purpose), tensor)

    def send_object(self, peer: int, serial: int, purpose: int, content: Any) -> None:
        assert self._transport is not None
        self._transport.send_object(peer, self._key(serial, purpose), content)

    def wait(self, serial: int, purpose: int, *, source: int) -> Any:
        """Return the message; other microbatches run until it is here."""
        return self._baton.wait(self._microbatch, (source, self._key(serial, purpose)))

    def await_turn(self, turn: Turn) -> None:
        """Return after the microbatch before has passed its turn of the same."""
        self._baton.await_turn(self._microbatch, turn)

    def pass_turn(self, turn: Turn) -> None:
        """Let the next microbatch do what this one has done."""
        self._baton.pass_turn(self._microbatch, turn)

    def enter_backward(self) -> None:
        self._baton.enter_backward(self._microbatch)

    def enter_weight(self) -> None:
        self._baton.enter_weight(self._microbatch)

    def _key(self, serial: int, purpose: int) -> Key:
        return Key(self._step, self._microbatch, serial, purpose)
