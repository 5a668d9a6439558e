"""The reduction server, the program of a helper host: it sums the chunks that ranks push, until SIGTERM.

    python -m herringbone_parallel.reduce.server

The environment (`ReduceVariable`) holds the address to listen at and the path of the job's token. The server writes one
line of JSON, {"port": N}, to the descriptor that READY names, or to standard output. At the end it prints one line of
JSON with its statistics.
"""

from __future__ import annotations

import json
import os
import select as polling
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from herringbone_contract.constants import ReduceVariable
from herringbone_contract.errors import HerringboneError, ParallelError
from herringbone_parallel.reduce.cores import select
from herringbone_parallel.reduce.cores.base import Core, CoreConfig, Limit, LinkSpec, Role, rotated
from herringbone_parallel.reduce.join.fabric import fabric_rails
from herringbone_parallel.reduce.join.handshake import AuthenticatedConnection
from herringbone_parallel.reduce.join.lane_hello import LaneHello
from herringbone_parallel.reduce.join.listener import Acceptor, listen
from herringbone_parallel.reduce.join.rails import Rails
from herringbone_parallel.reduce.join.settings import CORE_VARIABLE, host_name, rails_of, read_token

# A server may outlive many jobs; the first failures explain the later ones.
_MOST_FAILURES = 100


@dataclass(eq=False)
class _Group:
    """The ranks of one lane of one job that have connected so far, by host; `hello` is the first rank's."""

    hello: LaneHello
    members: dict[int, tuple[AuthenticatedConnection, LaneHello]] = field(default_factory=dict)
    core: Core | None = None  # from the start of its sums to their end
    rails: Rails | None = None
    is_started: bool = False
    failure: str | None = None
    # Held while the core closes: a second caller waits for the first.
    ending: threading.Lock = field(default_factory=threading.Lock)


class Server:
    """Accepts ranks, and starts a core for each lane when all its ranks have connected.

        server = Server("algo-3", listen("127.0.0.1"), token, core="native")
        server.port
        server.close()

    A lane whose ranks have left gives back its descriptors, its memory and its thread.
    """

    def __init__(
        self, host: str, listener: socket.socket, token: bytes, core: str | None = None, rails: Sequence[str] = ()
    ) -> None:
        self._label, self._core = f"the server on {host}", select.choose(core)
        self._host = host
        # Ranks choose between network interfaces when they connect; the server listens at one address.
        self._rails = tuple(rails) if fabric_rails(rails) else ()
        # Open the rails once, so that a missing provider is an error before any rank connects.
        Rails(self._rails, "").close()
        # Guards all members below, which the acceptor's threads change. `_waiting` holds groups that lack ranks,
        # `_running` those with a core. The others sum up groups that have ended.
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, int], _Group] = {}
        self._running: list[_Group] = []
        self._sent = self._received = self._ended = 0
        self._failures: list[str] = []
        self._is_closing = False
        self._acceptor = Acceptor([listener], token, self._label, self._admit)

    @property
    def port(self) -> int:
        """The port at which ranks connect."""
        return self._acceptor.port

    def stats(self) -> dict[str, Any]:
        """Return lanes, bytes, failures, processor time, and the number of refused connections so far."""
        with self._changed:
            cores = [group.core for group in self._running if group.core is not None]
            sent, received, ended = self._sent, self._received, self._ended
            failures = list(self._failures)
        links = [link for core in cores for link in core.counts()]
        return {
            "host": self._host,
            "core": self._core,
            "refused": self._acceptor.refused,
            "running": len(cores),
            "ended": ended,
            "sent_bytes": sent + sum(link.sent_bytes for link in links),
            "received_bytes": received + sum(link.received_bytes for link in links),
            "failures": failures + [failure for core in cores if (failure := core.failure())],
            "cpu_seconds": round(time.process_time(), 3),
        }

    def close(self) -> None:
        """Stop listening, and close all cores in good order."""
        self._acceptor.close()
        with self._changed:
            self._is_closing = True
            running = list(self._running)
        for group in running:
            self._end(group)

    def _admit(self, connection: AuthenticatedConnection, message: dict[str, Any]) -> None:
        """Add a rank to its group; the last one starts the group's core, the others wait for that.

        Runs in a thread of the acceptor for each connection, so waiting here delays no other rank. The thread of the
        last rank stays until the core has ended, and then frees the core.
        """
        hello = LaneHello.of(message)
        key = hello.session, hello.lane
        with self._changed:
            group = self._waiting.setdefault(key, _Group(hello))
            if (difference := group.hello.difference(hello)) is not None:
                raise ParallelError(difference)
            if hello.member in group.members:
                raise ParallelError(
                    f"{hello.label} connected as host {hello.member} of {hello.members}, which is already taken"
                )
            group.members[hello.member] = connection, hello
            if len(group.members) < hello.members:
                return self._wait(key, group, hello)
            del self._waiting[key]
        # Without the lock: a rank that reads slowly delays no other job.
        try:
            core = self._start(group)
        except BaseException as error:
            with self._changed:
                group.failure = f"{self._label} could not start: {error}"
                self._changed.notify_all()
            raise
        with self._changed:
            group.core, group.is_started = core, True
            self._running.append(group)
            is_closing = self._is_closing
            self._changed.notify_all()
        if is_closing:
            core.close()  # `close` has not seen this core
        poll = polling.poll()
        poll.register(core.completions(), polling.POLLIN)
        while not core.ended():
            poll.poll()
        self._end(group)
        return None

    def _wait(self, key: tuple[str, int], group: _Group, hello: LaneHello) -> None:
        """Wait until the group's core runs; raises `ParallelError` naming the hosts that are missing."""
        self._changed.wait_for(lambda: group.is_started or group.failure is not None, hello.join_timeout)
        if group.is_started:
            return
        if group.failure is not None:
            raise ParallelError(group.failure)
        # The last rank has come at the end of this rank's time: its thread starts the core with this connection.
        if len(group.members) == hello.members:
            return
        # The connection is closed after this error; without its entry, the rank may connect again.
        absent = sorted(set(range(hello.members)) - set(group.members))
        del group.members[hello.member]
        if not group.members:
            self._waiting.pop(key, None)
        raise ParallelError(
            f"{self._label} waited for ranks of all {hello.members} hosts: no rank of hosts {absent} connected"
        )

    def _end(self, group: _Group) -> None:
        """Close a group's core, keep its counts, and free the rest; a second call does nothing."""
        with group.ending:
            core = group.core
            if core is None:
                return
            core.close()
            # After the core: its last messages still travel over the rails.
            if group.rails is not None:
                group.rails.close()
            links = core.counts()
            with self._changed:
                self._running.remove(group)
                self._ended += 1
                self._sent += sum(link.sent_bytes for link in links)
                self._received += sum(link.received_bytes for link in links)
                if (failure := core.failure()) is not None and len(self._failures) < _MOST_FAILURES:
                    self._failures.append(failure)
                # The last reference, except for those of the caller and of `stats`.
                group.core = None

    def _start(self, group: _Group) -> Core:
        """Answer all ranks of a group and start its core."""
        hello = group.hello
        config = CoreConfig(
            label=self._label,
            member=-1,  # a helper has no buffer of its own
            members=hello.members,
            helpers=0,
            local=0,
            locals=1,
            lanes=1,
            ranks=0,
            chunk_bytes=hello.chunk_bytes,
            limit=hello.limit,
            local_limit=Limit(0, 0),
            silence=hello.silence,
            late=hello.late,
        )
        links: list[LinkSpec] = []
        members = sorted(group.members.items())
        try:
            # The address to which the first rank connected is one that ranks can reach.
            group.rails = rails = Rails(self._rails, members[0][1][0].socket.getsockname()[0])
            for member, (connection, rank_hello) in members:
                own = rails.answer(rank_hello.fabric)
                connection.send({"fabric": own})
                carried = rails.carry(connection.socket, own, rank_hello.fabric)
                carried.setblocking(False)
                if carried.family != socket.AF_UNIX:
                    carried.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                links.append(LinkSpec(carried.detach(), Role.PEER, member, rank_hello.label))
            rails.start()
        except BaseException:
            # These sockets are detached, so nothing else closes them. The threads of the other ranks close the others.
            for link in links:
                os.close(link.descriptor)
            if group.rails is not None:
                group.rails.close()
            raise
        return select.make(self._core, replace(config, links=rotated(links, hello.server)))


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        listener = listen(environment.get(ReduceVariable.LISTEN, "127.0.0.1"))
        server = Server(
            host_name(environment),
            listener,
            read_token(environment),
            environment.get(CORE_VARIABLE) or None,
            rails_of(environment),
        )
    except HerringboneError as error:
        print(f"herringbone: {error}", file=sys.stderr)
        return 1
    ready = json.dumps({"port": server.port}) + "\n"
    descriptor = environment.get(ReduceVariable.READY)
    if descriptor is None:
        print(ready, end="", flush=True)
    else:
        with os.fdopen(int(descriptor), "w") as file:
            file.write(ready)
    stop.wait()
    server.close()
    print(json.dumps(server.stats()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
