"""A host's place among the hosts of the job: the first one decides, the others hear it over the channel."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from herringbone_contract.failure import Failure, lost_contact
from herringbone_entry.channel import interfaces
from herringbone_entry.channel.frames import Message, Wire
from herringbone_entry.host import Host
from herringbone_entry.launchers.data_parallel import token
from herringbone_entry.supervisor.coordinator import STOPPED_CODE, Coordinator
from herringbone_entry.supervisor.event_loop import Loop

if TYPE_CHECKING:
    from herringbone_entry.channel.channel import Link

Obey = Callable[[Message], None]

# The first host leaves after the others, unless they take longer than this.
_FAREWELL_SECONDS = 2.0
_TOKEN_BYTES = 32


class Party(Protocol):
    """What a host needs of the others."""

    def obey(self, orders: Obey) -> None:
        """Say who carries out orders on this host."""

    def tell(self, event: Message) -> None:
        """Pass an event to the coordinator, wherever it is."""

    def leave(self, code: int) -> None:
        """This host is done, with that exit code."""

    def token(self) -> str:
        """Return what only this job's ranks and servers know; a lone host makes one up."""

    def local_address(self) -> str | None:
        """Return the address by which other machines reach this host; None where there are none, or none came yet."""


class FirstHost:
    """The host where the coordinator lives; alone, or with a door for the others."""

    def __init__(self, host: Host, loop: Loop, key: bytes | None) -> None:
        self._host, self._loop = host, loop
        self._key = key
        # Not made from anything: what that takes is not imported for a lone host.
        self._token = os.urandom(_TOKEN_BYTES).hex() if key is None else ""
        self._links: dict[str, Link] = {}
        self._local_address: str | None = None
        self._code: int | None = None
        self._obey: Obey = _nobody
        self._coordinator = Coordinator(
            host.resources.hosts,
            order=self._order,
            clock=time.monotonic,
            later=loop.later,
            join_timeout=host.join_timeout,
            across=not host.on_one_machine,
        )
        if host.control is not None and key is not None:
            # Most jobs have one host and never need this.
            from herringbone_entry.channel.address import parse_address
            from herringbone_entry.channel.channel import Door

            address = parse_address(host.control, heartbeat=host.heartbeat)
            Door(address, key, host.resources.hosts[1:], loop, self._join)

    def obey(self, orders: Obey) -> None:
        self._obey = orders

    def tell(self, event: Message) -> None:
        # In the loop's next turn: an order may come out of it, and whoever tells is in the middle of something.
        self._loop.later(0.0, lambda: self._coordinator.receive(self._host.name, event))

    def token(self) -> str:
        return self._token if self._key is None else token(self._key)

    def leave(self, code: int) -> None:
        self._code = code
        self._loop.later(_FAREWELL_SECONDS, lambda: self._loop.stop(code))
        self._leave_last()

    def local_address(self) -> str | None:
        return self._local_address

    def _join(self, name: str, wire: Wire) -> None:
        from herringbone_entry.channel.channel import Link

        self._local_address = interfaces.local_address(wire.connection)

        self._links[name] = Link(
            wire,
            self._loop,
            heartbeat=self._host.heartbeat,
            on_message=lambda message: self._coordinator.receive(name, message),
            on_lost=lambda silence: self._lost(name, silence),
        )
        self._coordinator.joined()

    def _order(self, order: Message) -> None:
        only = order.get("host")
        for name, link in list(self._links.items()):
            if only in (None, name):
                link.send(order)
            if order["kind"] == "start":
                link.watch()
        if only in (None, self._host.name):
            self._obey(order)

    def _lost(self, name: str, silence: str) -> None:
        del self._links[name]
        self._coordinator.lost(name, silence)
        self._leave_last()

    def _leave_last(self) -> None:
        if self._code is not None and not self._links:
            self._loop.stop(self._code)


class OtherHost:
    """Any host but the first: knocks at its door, then passes events and takes orders."""

    def __init__(self, host: Host, loop: Loop, key: bytes | None) -> None:
        self._host, self._loop = host, loop
        self._key = key
        self._link: Link | None = None
        self._local_address: str | None = None
        self._waiting: list[Message] = []
        self._obey: Obey = _nobody
        self._stopping = False
        self._over = False
        self._started = False
        if host.control is not None and key is not None:
            from herringbone_entry.channel.address import parse_address
            from herringbone_entry.channel.channel import Knock

            address = parse_address(host.control, heartbeat=host.heartbeat)
            Knock(address, key, host.name, loop, on_join=self._join, on_gone=self._lost)
            loop.later(host.join_timeout, self._give_up)

    def obey(self, orders: Obey) -> None:
        self._obey = orders

    def tell(self, event: Message) -> None:
        if self._host.control is None:
            self._end_alone(event)
        elif self._link is None:
            if event["kind"] == "stop":
                self._end(STOPPED_CODE, None)
            self._waiting.append(event)
        else:
            self._link.send(event)

    def token(self) -> str:
        assert self._key is not None, "a host that cannot reach the first one starts no rank"
        return token(self._key)

    def leave(self, code: int) -> None:
        self._over = True
        if self._link is not None:
            self._link.close()
        self._loop.stop(code)

    def local_address(self) -> str | None:
        return self._local_address

    def _join(self, wire: Wire) -> None:
        from herringbone_entry.channel.channel import MISSED_HEARTBEATS, Link

        # By then the first host has started the job or given it up: it has been waiting for at least as long.
        patience = self._host.join_timeout + MISSED_HEARTBEATS * self._host.heartbeat
        self._loop.later(patience, self._never_started)
        self._local_address = interfaces.local_address(wire.connection)
        self._link = Link(wire, self._loop, heartbeat=self._host.heartbeat, on_message=self._take, on_lost=self._lost)
        for event in self._waiting:
            self._link.send(event)
        self._waiting.clear()

    def _take(self, order: Message) -> None:
        if order["kind"] == "start" and self._link is not None:
            self._started = True
            self._link.watch()
        self._stopping = self._stopping or order["kind"] == "stop"
        self._over = self._over or order["kind"] == "finish"
        self._obey(order)

    def _lost(self, silence: str = "") -> None:
        """The first host is gone, and nobody is left to decide anything."""
        if self._over:
            return
        if self._stopping:
            self._end(STOPPED_CODE, None)
        else:
            first = self._host.resources.first_host
            self._end(1, lost_contact(first, silence))

    def _give_up(self) -> None:
        if self._link is None and not self._over:
            first = self._host.resources.first_host
            message = f"{first} did not come within {self._host.join_timeout:g} s; is the host up, did it start?"
            self._end(1, Failure(host=self._host.name, exit_code=1, exception="LaunchError", message=message))

    def _never_started(self) -> None:
        if not self._started:
            self._lost()

    def _end_alone(self, event: Message) -> None:
        """Without a channel there is nobody to tell; only our own failure, or a stop, can end this."""
        if event["kind"] == "failed":
            self._over = True
            self._obey({"kind": "finish", "code": 1, "failure": event["failure"]})
        elif event["kind"] == "stop":
            self._end(STOPPED_CODE, None)

    def _end(self, code: int, found: Failure | None) -> None:
        self._over = True
        self._obey({"kind": "abort", "after": 0.0})
        self._obey({"kind": "finish", "code": code, "failure": None if found is None else found.to_json()})


def _nobody(order: Message) -> None:
    raise AssertionError(f"order {order['kind']!r} came before anybody could obey")
