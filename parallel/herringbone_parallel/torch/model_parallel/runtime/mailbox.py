"""The mailbox of one microbatch: the messages it sends, and those it waits for while other microbatches run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from herringbone_parallel.torch.model_parallel.runtime.messages import Key, MessageId, Purpose
from herringbone_parallel.torch.model_parallel.runtime.run_token import RunToken, Ticket
from herringbone_parallel.torch.model_parallel.runtime.transport import Transport


class Mailbox:
    """Sends and receives for one microbatch of one step; `rank` is this process's pipeline rank.

    Only the thread of its microbatch calls it, so it has no lock. `transport` is None in a pipeline of one rank, which
    never sends. `before_backward` runs at the end of the forward, while this microbatch still holds the run token.
    """

    def __init__(
        self,
        rank: int,
        step: int,
        microbatch: int,
        transport: Transport | None,
        token: RunToken,
        before_backward: Callable[[], None] | None = None,
    ) -> None:
        self.rank = rank
        self._step = step
        self.microbatch = microbatch
        self._transport = transport
        self._token = token
        self._before_backward = before_backward

    def send_tensor(self, peer: int, serial: int, purpose: Purpose, tensor: torch.Tensor) -> None:
        """Start sending a tensor; it must not change before the step ends."""
        assert self._transport is not None
        self._transport.send_tensor(peer, self._key(serial, purpose), tensor)

    def send_object(self, peer: int, serial: int, purpose: Purpose, content: Any) -> None:
        """Start sending a picklable object."""
        assert self._transport is not None
        self._transport.send_object(peer, self._key(serial, purpose), content)

    def wait(self, serial: int, purpose: Purpose, *, source: int) -> Any:
        """Return the message; other microbatches run until it arrives."""
        # With the source, because each rank that used a value returns its gradient under the same key.
        return self._token.wait(self.microbatch, MessageId(source, self._key(serial, purpose)))

    def await_ticket(self, ticket: Ticket) -> None:
        """Return once the previous microbatch has passed the same ticket."""
        self._token.await_ticket(self.microbatch, ticket)

    def pass_ticket(self, ticket: Ticket) -> None:
        """Let the next microbatch do what this one has done."""
        self._token.pass_ticket(self.microbatch, ticket)

    def enter_backward(self) -> None:
        """Go on with the backward when the schedule says so."""
        if self._before_backward is not None:
            self._before_backward()
        self._token.enter_backward(self.microbatch)

    def enter_weight(self) -> None:
        """Go on with the gradients of parameters when the schedule says so."""
        self._token.enter_weight(self.microbatch)

    def _key(self, serial: int, purpose: Purpose) -> Key:
        return Key(self._step, self.microbatch, serial, purpose)
