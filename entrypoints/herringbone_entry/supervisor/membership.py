"""A host's membership in the job: the first host leads, the others follow over the control channel."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from herringbone_contract.failure import STOPPED_CODE, Failure, lost_contact
from herringbone_entry.channel import interfaces
from herringbone_entry.channel.frames import Message, Wire
from herringbone_entry.event_loop import Loop
from herringbone_entry.host import Host
from herringbone_entry.supervisor.coordinator import Coordinator

if TYPE_CHECKING:
    from herringbone_entry.channel.channel import Connector, Link
    from herringbone_entry.channel.messages import Event, Order

    Obey = Callable[[Order], None]

# The first host leaves after the others, unless they take longer than this.
_FAREWELL_SECONDS = 2.0
_TOKEN_BYTES = 32


class Membership(Protocol):
    """The connection of one host's supervisor to the coordinator, and with it to the other hosts."""

    def obey(self, obey: Obey) -> None:
        """Set the function that carries out orders on this host."""

    def report(self, event: Event) -> None:
        """Pass an event to the coordinator, wherever it runs."""

    def leave(self, code: int) -> None:
        """Leave the job with that exit code: this host has nothing left to do."""

    def token(self) -> str:
        """Return the secret that only this job's ranks and servers share; a lone host makes one up."""

    def local_address(self) -> str | None:
        """Return the address by which other machines reach this host; None without other machines, or before one came.

        The address is that of our own end of a connection to another host.
        """


class Leader:
    """The first host, in which the coordinator runs; alone, or with a listener for the others."""

    def __init__(self, host: Host, loop: Loop, key: bytes | None) -> None:
        self._host, self._loop = host, loop
        self._key = key
        # A lone host has no key. Its token is random: deriving one would import `hmac` for every plain job.
        self._token = os.urandom(_TOKEN_BYTES).hex() if key is None else ""
        # Connections to hosts that have joined and are not lost.
        self._links: dict[str, Link] = {}
        # Known once another host has connected: a host may have many addresses, and this one leads to the others.
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
            policies=host.fault_policies,
            infra_check=host.infra_check,
        )
        if host.control is not None and key is not None:
            # Most jobs have one host and never need these modules.
            from herringbone_entry.channel.address import parse_address
            from herringbone_entry.channel.channel import Listener

            address = parse_address(host.control, heartbeat=host.heartbeat)
            # The loop's callbacks keep the listener alive; nothing else refers to it.
            Listener(address, key, host.resources.hosts[1:], loop, self._join)

    def obey(self, obey: Obey) -> None:
        self._obey = obey

    def report(self, event: Event) -> None:
        # In the loop's next turn: the coordinator may answer with an order, and the reporter is not done yet.
        self._loop.later(0.0, lambda: self._coordinator.receive(self._host.name, event))

    def token(self) -> str:
        return self._token if self._key is None else _token(self._key)

    def leave(self, code: int) -> None:
        self._code = code
        # The others read their last order from us: leaving first would look like a lost host to them.
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
            on_message=lambda message: self._coordinator.receive(name, cast("Event", message)),
            # `name` is a parameter of this call, so each link keeps its own.
            on_lost=lambda silence: self._lost(name, silence),
        )
        self._coordinator.joined()

    def _order(self, order: Order) -> None:
        # A few orders name one host; all others go to every host.
        addressee = order.get("host")
        # A copy: `send` drops a link that turns out to be dead.
        for name, link in list(self._links.items()):
            if addressee in (None, name):
                link.send(order)
            if order["kind"] == "start":
                link.watch()
        if addressee in (None, self._host.name):
            self._obey(order)

    def _lost(self, name: str, silence: str) -> None:
        del self._links[name]
        self._coordinator.lost(name, silence)
        self._leave_last()

    def _leave_last(self) -> None:
        if self._code is not None and not self._links:
            self._loop.stop(self._code)


class Follower:
    """Any host but the first: connects to the first host, then passes events and takes orders."""

    def __init__(self, host: Host, loop: Loop, key: bytes | None) -> None:
        self._host, self._loop = host, loop
        self._key = key
        self._link: Link | None = None
        # None without a channel.
        self._connector: Connector | None = None
        self._local_address: str | None = None
        # Events from before the connection; the coordinator gets them in this order.
        self._waiting: list[Event] = []
        self._obey: Obey = _nobody
        # After a stop, a lost first host means that it ended first, and is no failure.
        self._stopping = False
        self._over = False
        self._started = False
        if host.control is not None and key is not None:
            from herringbone_entry.channel.address import parse_address
            from herringbone_entry.channel.channel import Connector

            address = parse_address(host.control, heartbeat=host.heartbeat)
            self._connector = Connector(address, key, host.name, loop, on_join=self._join, on_gone=self._lost)
            # The first host counts the same time by itself; here it bounds the wait for a host that never starts.
            loop.later(host.join_timeout, self._give_up)

    def obey(self, obey: Obey) -> None:
        self._obey = obey

    def report(self, event: Event) -> None:
        if self._host.control is None:
            self._end_alone(event)
        elif self._link is None:
            if event["kind"] == "stop":
                # The first host may never come: a stop must not wait for it.
                self._end(STOPPED_CODE, None)
            self._waiting.append(event)
        else:
            self._link.send(event)

    def token(self) -> str:
        assert self._key is not None, "a host that cannot reach the first one starts no rank"
        return _token(self._key)

    def leave(self, code: int) -> None:
        self._over = True
        if self._link is not None:
            self._link.close()
        self._loop.stop(code)

    def local_address(self) -> str | None:
        return self._local_address

    def _join(self, wire: Wire) -> None:
        from herringbone_entry.channel.channel import MISSED_HEARTBEATS, Link
        from herringbone_entry.supervisor.start_checks import LINKS_SECONDS, LOCAL_SECONDS

        # After this time the first host has started the job or given up: it began to wait at least as early as we did.
        patience = self._host.join_timeout + MISSED_HEARTBEATS * self._host.heartbeat
        # It has seen that all are ready by then, and may examine them.
        patience += LOCAL_SECONDS + LINKS_SECONDS
        self._loop.later(patience, self._lose_unless_started)
        self._local_address = interfaces.local_address(wire.connection)
        self._link = Link(
            wire, self._loop, heartbeat=self._host.heartbeat, on_message=self._receive, on_lost=self._lost
        )
        # This host may have become ready, or failed, before the first host listened.
        for event in self._waiting:
            self._link.send(event)
        self._waiting.clear()

    def _receive(self, message: Message) -> None:
        order = cast("Order", message)
        # Before the start a host may be installing packages, and sends no heartbeats then.
        if order["kind"] == "start" and self._link is not None:
            self._started = True
            self._link.watch()
        self._stopping = self._stopping or order["kind"] in ("ask", "stop")
        self._over = self._over or order["kind"] == "finish"
        self._obey(order)

    def _lost(self, silence: str = "") -> None:
        """End this host's part: with the first host gone, nobody is left to decide anything."""
        if self._over:
            return
        if self._stopping:
            self._end(STOPPED_CODE, None)
        elif self._connector is not None and self._connector.times_refused and self._link is None:
            self._end(1, self._never_joined())
        else:
            first = self._host.resources.first_host
            self._end(1, lost_contact(first, silence))

    def _give_up(self) -> None:
        if self._link is None and not self._over:
            self._end(1, self._never_joined())

    def _never_joined(self) -> Failure:
        first, timeout = self._host.resources.first_host, self._host.join_timeout
        message = f"{first} did not come within {timeout:g} s; is the host up, did it start?"
        if self._connector is not None and self._connector.times_refused:
            message = (
                f"{first} was reached {self._connector.times_refused} times, and each connection ended before both "
                "hosts had proved themselves; does this host have the secret and the name that the job gave it?"
            )
        return Failure(host=self._host.name, exit_code=1, exception="LaunchError", message=message)

    def _lose_unless_started(self) -> None:
        if not self._started:
            self._lost()

    def _end_alone(self, event: Event) -> None:
        """End a host without a channel: nobody receives its reports, so only its own failure or a stop ends it."""
        if event["kind"] == "failed":
            self._over = True
            self._obey({"kind": "finish", "code": 1, "failure": event["failure"]})
        elif event["kind"] == "stop":
            self._end(STOPPED_CODE, None)

    def _end(self, code: int, failure: Failure | None) -> None:
        """Give this host's supervisor the orders that the coordinator cannot give."""
        self._over = True
        # First the ranks end, then the supervisor leaves once they are gone.
        self._obey({"kind": "abort", "after": 0.0})
        self._obey({"kind": "finish", "code": code, "failure": None if failure is None else failure.to_json()})


def _nobody(order: Order) -> None:
    raise AssertionError(f"order {order['kind']!r} came before anybody could obey")


def _token(key: bytes) -> str:
    # A lone host never needs this module.
    from herringbone_entry.launchers.data_parallel import token

    return token(key)
