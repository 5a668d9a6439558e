"""Follow the hosts of one job over a connection to each machine; a connection that breaks is opened again.

    look()  -> every HostMonitor reads the messages that have arrived: rows, log bytes, refusals
            -> `attempts.job_state` decides which machines are lost that stay silent after other hosts have ended

Nothing here waits. One thread at a time calls `look`, so no member has a lock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from herringbone.backends.ssh.agent.messages import Message
from herringbone.backends.ssh.attempts.job_state import HostState, Outlived, is_over, outlived
from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.backends.ssh.transport.connection import Connection
from herringbone.backends.ssh.transport.protocol import Transport
from herringbone_contract.errors import HostError

# Pauses before the attempts to open a broken connection again; the last one applies from then on.
_RETRY_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0)
# Shorter interruptions are not reported: most connections are open again at once.
_REPORT_SECONDS = 2.0
# The first look at a job waits this long for machines that neither answer nor refuse the connection.
FIRST_LOOK_SECONDS = 5.0
_POLL_SECONDS = 0.02

TakeBytes = Callable[[bytes], None]


@dataclass(slots=True)
class _Receiver:
    """Takes the bytes of one of the host's files, which ends in `ending`, from the byte `offset` on.

    `size` is the file's at the time of the request, None until the machine has answered.
    """

    ending: str
    take: TakeBytes
    offset: int = 0
    size: int | None = None

    @property
    def has_all(self) -> bool:
        return self.size is not None and self.offset >= self.size


class HostMonitor:
    """The last known state of one host; `connection` is an open connection to its machine, None to open one."""

    def __init__(
        self, job: str, host: str, machine: Machine, transport: Transport[Machine], connection: Connection | None
    ) -> None:
        self.host, self.machine = host, machine
        self._job, self._transport = job, transport
        # None until the first look and while the connection is broken.
        self._connection: Connection | None = None
        self._opened_earlier = connection
        self._failed_attempts, self._next_attempt = 0, 0.0
        # By the number of the request.
        self._receivers: dict[int, _Receiver] = {}
        # The same while there is no connection: request their files again.
        self._pending: list[_Receiver] = []
        self.state = HostState(host, machine.name)
        self.trouble = ""
        self.last_message = self._broken_at = 0.0

    def silence(self, now: float) -> str:
        """Return why the machine has not been heard of for a while, or its host stands still; "" for neither."""
        return self.trouble if self.trouble and now - self._broken_at >= _REPORT_SECONDS else self.state.standstill

    def take_file(self, ending: str, take: TakeBytes, offset: int = 0) -> None:
        """Pass the host's file with this ending, such as `log`, to `take`, from a byte on, in pieces as they arrive."""
        self._request(_Receiver(ending, take, offset))

    @property
    def has_sent_all(self) -> bool:
        """Report whether the host's files have arrived as they were when asked for, or the machine is silent."""
        if self.trouble or self.state.done:
            return True
        return not self._pending and all(receiver.has_all for receiver in self._receivers.values())

    def look(self, now: float) -> None:
        """Process the messages that have arrived; open the connection when it is broken and its pause is over."""
        if self._connection is None:
            if self.state.forgotten or now < self._next_attempt:
                return
            self._connect()
        assert self._connection is not None
        try:
            for message, payload in self._connection.messages():
                self._process(message, payload, now)
        except HostError as error:
            self._disconnected(str(error), now)

    def send(self, message: Message) -> None:
        """Send a request if there is a connection; the answer is not waited for."""
        if self._connection is not None:
            self._connection.send(message)

    def disconnect(self) -> None:
        """Start to close the connection, without waiting."""
        for connection in (self._connection, self._opened_earlier):
            if connection is not None:
                connection.disconnect()

    def close(self, *, gracefully: bool = True) -> None:
        """Close the connection; the host runs on."""
        for connection in (self._connection, self._opened_earlier):
            if connection is not None:
                connection.close(gracefully=gracefully)
        self._connection = self._opened_earlier = None

    def _connect(self) -> None:
        self._connection = self._opened_earlier or self._transport.connect(self.machine)
        self._opened_earlier = None
        self._connection.send({"ask": "follow", "job": self._job, "host": self.host})
        pending, self._pending = self._pending, []
        for receiver in pending:
            self._request(receiver)

    def _request(self, receiver: _Receiver) -> None:
        if self._connection is None:
            self._pending.append(receiver)
            return
        request = {"ask": "log", "job": self._job, "host": self.host, "offset": receiver.offset}
        self._receivers[self._connection.send({**request, "file": receiver.ending})] = receiver

    def _process(self, message: Message, payload: bytes, now: float) -> None:
        # Any message proves that the machine is reachable.
        self._failed_attempts, self.trouble, self.last_message = 0, "", now
        if "log" in message:
            receiver = self._receivers[message["log"]]
            # Count before delivery: after a broken connection the file continues behind exactly these bytes.
            receiver.offset += len(payload)
            receiver.take(payload)
        elif "row" in message:
            self.state = HostState(
                self.host,
                self.machine.name,
                message["row"],
                message.get("record"),
                # Too large by the time that the message took, which is short compared to a clock that is wrong.
                ahead=message["now"] - time.time(),
                folders=message.get("left", ()),
                unsafe=message.get("unsafe", ""),
                standstill=message.get("standstill", ""),
            )
        elif "size" in message and message.get("answer") in self._receivers:
            self._receivers[message["answer"]].size = message["size"]
        elif "refused" in message:
            # The machine answers and does not know the job; it will not know it later either, so stop asking.
            self._disconnected(message["refused"], now)
            self.state = replace(self.state, lost=self.trouble, forgotten=True)

    def _disconnected(self, why: str, now: float) -> None:
        self.close()
        # Keep the time of the first failure: it is the start of the silence.
        if not self.trouble:
            self._broken_at = now
        self.trouble = why.removeprefix(f"{self.machine.name}: ")
        # Request numbers belong to a connection, so the next one gets new requests.
        self._pending += self._receivers.values()
        self._receivers.clear()
        self._next_attempt = now + _RETRY_SECONDS[min(self._failed_attempts, len(_RETRY_SECONDS) - 1)]
        self._failed_attempts += 1


class JobMonitor:
    """All hosts of one job; `connections` are those that are open already, by host.

    >>> monitor = JobMonitor("digits-1", {"algo-1": machine}, transport)        # doctest: +SKIP
    >>> monitor.look(); is_over(monitor.states)                                 # doctest: +SKIP
    False
    """

    def __init__(
        self,
        job: str,
        machines: Mapping[str, Machine],
        transport: Transport[Machine],
        *,
        connections: Mapping[str, Connection] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self._clock = clock
        self.hosts = {
            host: HostMonitor(job, host, machine, transport, connections.get(host))
            for host, machine in machines.items()
        }
        # When the first host was seen to be over; None before.
        self._first_end: float | None = None
        # Hosts that got a kill, and hosts whose machines are not waited for any more.
        self._outlived = Outlived()
        self._closed = False

    def look(self) -> None:
        """Process what has arrived from all machines; declare machines lost that outlive the others in silence."""
        if self._closed:
            return
        now = self._clock()
        for host in self.hosts.values():
            if not host.state.done:
                host.look(now)
        self._give_up(now)

    def first_look(self) -> None:
        """Look until the machines have told how the job is: a caller that looks once must not get an old state.

        That takes a while when some hosts are over: the others may end at any moment, or are lost.
        """
        begin = self._clock()
        self.look()
        while not self.is_over and not self._closed:
            waits = any(host.state.row is None and not host.trouble for host in self.hosts.values())
            if self._first_end is None and not (waits and self._clock() < begin + FIRST_LOOK_SECONDS):
                return
            time.sleep(_POLL_SECONDS)
            self.look()

    @property
    def has_sent_all(self) -> bool:
        """Report whether every host that can be reached has sent what its files held when they were asked for."""
        return self._closed or all(host.has_sent_all for host in self.hosts.values())

    def silences(self) -> dict[str, str]:
        """Return the reason for each host that has not been heard of for a while, by host."""
        now = self._clock()
        reasons = {host.host: host.silence(now) for host in self.hosts.values() if not host.state.done}
        return {host: reason for host, reason in reasons.items() if reason}

    @property
    def states(self) -> list[HostState]:
        """Return the states of all hosts; those of lost machines say why."""
        return [
            replace(host.state, lost=host.trouble or "it does not answer")
            if host.host in self._outlived.lost and not host.state.done
            else host.state
            for host in self.hosts.values()
        ]

    @property
    def is_over(self) -> bool:
        """Report whether the job is over."""
        return is_over(self.states)

    def close(self) -> None:
        """Close all connections; the job runs on."""
        self._closed = True
        # Two passes: all agents end at the same time, and the second pass waits once and not once per machine.
        for host in self.hosts.values():
            host.disconnect()
        for host in self.hosts.values():
            # A lost machine does not answer, so waiting for its agent's end is in vain.
            host.close(gracefully=host.host not in self._outlived.lost)

    def _give_up(self, now: float) -> None:
        """End what outlives the other hosts, and stop waiting for machines that stay silent, as `outlived` decides."""
        living = [host for host in self.hosts.values() if host.state.may_run]
        if len(living) == len(self.hosts):
            return
        if self._first_end is None:
            self._first_end = now
            for host in living:
                # Any request would do: its answer proves that the machine is reachable.
                host.send({"ask": "owner"})
        decision = outlived(
            [host.state for host in self.hosts.values()],
            now - self._first_end,
            heard={host.host for host in living if host.last_message > self._first_end},
            cut_off={host.host for host in living if host.trouble},
        )
        before = self._outlived
        # A machine that nobody waits for stays lost, whatever it sends later: the end of the job has begun.
        self._outlived = Outlived(before.killed | decision.killed, before.lost | decision.lost)
        for host in living:
            # A lost machine that still gets the message ends what it has of the job.
            if host.host in (decision.killed - before.killed) | (decision.lost - before.lost):
                with contextlib.suppress(HostError):
                    host.send({"ask": "kill", "job": self.job, "late": True})
