"""The reduction server, the program of a helper host: it sums the chunks that ranks push, until SIGTERM.

    python -m herringbone_parallel.reduce.server

The environment (`ReduceVariable`) holds the address to listen at and the path of the job's token. The server writes one
line of JSON, {"port": N}, to the descriptor that READY names, or to standard output. At the end it prints one line of
JSON with its statistics.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from herringbone_contract.constants import ReduceVariable
from herringbone_contract.errors import HerringboneError, ParallelError
from herringbone_parallel.reduce.cores import select
from herringbone_parallel.reduce.cores.base import Core, CoreConfig, Limit, LinkSpec, Role, rotated
from herringbone_parallel.reduce.join import handshake
from herringbone_parallel.reduce.join.fabric import fabric_rails
from herringbone_parallel.reduce.join.listener import Acceptor, listen
from herringbone_parallel.reduce.join.rails import Rails
from herringbone_parallel.reduce.join.settings import CORE_VARIABLE, host_name, rails_of, read_token

# The fields of a hello that must be equal on all ranks of a lane.
_AGREED = ("server", "members", "chunk_bytes", "ring", "most", "silence", "late")


@dataclass
class _Group:
    """The ranks of one lane of one job. `hello` is the first rank's, `members` the connections so far, by host."""

    hello: dict[str, Any]
    members: dict[int, tuple[socket.socket, dict[str, Any]]] = field(default_factory=dict)
    core: Core | None = None
    rails: Rails | None = None


class Server:
    """Accepts ranks, and starts a core for each lane when all its ranks have connected.

    server = Server("algo-3", listen("127.0.0.1"), token, core="native")
    server.port
    server.close()
    """

    def __init__(
        self, host: str, listener: socket.socket, token: bytes, core: str | None = None, rails: Sequence[str] = ()
    ) -> None:
        self._host, self._core = host, select.choose(core)
        # Ranks choose between network interfaces when they connect; the server listens at one address.
        self._rails = tuple(rails) if fabric_rails(rails) else ()
        # Open the rails once, so that a missing provider is an error before any rank connects.
        Rails(self._rails, "").close()
        # Guards `_groups`, which the acceptor's threads fill.
        self._changed = threading.Condition()
        self._groups: dict[tuple[str, int], _Group] = {}
        self._acceptor = Acceptor([listener], token, self._admit)

    @property
    def port(self) -> int:
        """The port at which ranks connect."""
        return self._acceptor.port

    def stats(self) -> dict[str, Any]:
        """Return bytes, failures, processor time, and the number of refused connections so far."""
        with self._changed:
            cores = [group.core for group in self._groups.values() if group.core is not None]
        links = [link for core in cores for link in core.counts()]
        return {
            "host": self._host,
            "core": self._core,
            "refused": self._acceptor.refused,
            "sent_bytes": sum(link.sent_bytes for link in links),
            "received_bytes": sum(link.received_bytes for link in links),
            "failures": [core.failure() for core in cores if core.failure()],
            "cpu_seconds": round(time.process_time(), 3),
        }

    def close(self) -> None:
        """Stop listening, and close all cores in good order."""
        self._acceptor.close()
        with self._changed:
            running = [group for group in self._groups.values() if group.core is not None]
        for group in running:
            if group.core is not None:
                group.core.close()
            # After the core: its last messages still travel over the rails.
            if group.rails is not None:
                group.rails.close()

    def _admit(self, connection: socket.socket, hello: dict[str, Any]) -> None:
        """Add a rank to its group; the last one starts the group's core, the others wait for that.

        Runs in a thread of the acceptor for each connection, so waiting here delays no other rank.
        """
        member, members = int(hello["member"]), int(hello["members"])
        key = str(hello["session"]), int(hello["lane"])
        with self._changed:
            group = self._groups.setdefault(key, _Group(hello))
            for name in _AGREED:
                if hello[name] != group.hello[name]:
                    raise ParallelError(f"ranks disagree on {name}: {group.hello[name]} and {hello[name]}")
            if member in group.members or not 0 <= member < members:
                raise ParallelError(f"{hello['label']} connected as host {member} of {members}, which is already taken")
            group.members[member] = connection, hello
            if len(group.members) == members:
                group.core = self._start(group)
                self._changed.notify_all()
                return
            if self._changed.wait_for(lambda: group.core is not None, float(hello["join_timeout"])):
                return
            # The connection is closed after this error; without its entry, the rank may connect again.
            del group.members[member]
            absent = sorted(set(range(members)) - set(group.members))
        raise ParallelError(
            f"the server on {self._host} waited for ranks of all {members} hosts: no rank of hosts {absent} connected"
        )

    def _start(self, group: _Group) -> Core:
        """Answer all ranks of a group and start its core. Requires `_changed`, so that it runs once per group."""
        links = []
        members = sorted(group.members.items())
        # The address to which the first rank connected is one that ranks can reach.
        group.rails = rails = Rails(self._rails, members[0][1][0].getsockname()[0])
        for member, (connection, rank_hello) in members:
            theirs = rank_hello.get("fabric")
            own = rails.answer(theirs)
            handshake.send(connection, {"fabric": own})
            carried = rails.carry(connection, own, theirs)
            carried.setblocking(False)
            if carried.family != socket.AF_UNIX:
                carried.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            links.append(LinkSpec(carried.detach(), Role.PEER, member, str(rank_hello["label"])))
        rails.start()
        hello = group.hello
        return select.make(
            self._core,
            CoreConfig(
                label=f"the server on {self._host}",
                member=-1,  # a helper has no buffer of its own
                members=int(hello["members"]),
                helpers=0,
                local=0,
                locals=1,
                lanes=1,
                ranks=0,
                chunk_bytes=int(hello["chunk_bytes"]),
                limit=Limit(int(hello["ring"]), int(hello["most"])),
                local_limit=Limit(0, 0),
                silence=float(hello["silence"]),
                late=float(hello["late"]),
                links=rotated(links, int(hello["server"])),
            ),
        )


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
