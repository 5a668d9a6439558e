"""What a helper host runs: `python -m herringbone_parallel.reduce.server` sums what ranks push, until SIGTERM.

The environment says where to listen and where the job's token is (`ReduceVariable`). One line of JSON, {"port": N},
goes to the descriptor that READY names, else to standard output. At the end, one line of JSON says what was done.
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
from herringbone_parallel.reduce.cores.base import Core, CoreConfig, Limit, LinkSpec, Role, in_turn
from herringbone_parallel.reduce.join import handshake
from herringbone_parallel.reduce.join.fabric import fabric_rails
from herringbone_parallel.reduce.join.listener import Door, listen
from herringbone_parallel.reduce.join.rails import Rails
from herringbone_parallel.reduce.join.settings import CORE_VARIABLE, host_name, rails_of, read_token

_SHARED = ("server", "members", "chunk_bytes", "ring", "most", "silence", "late")


@dataclass
class _Group:
    """The ranks of one lane of one job that have connected so far, and what each said."""

    hello: dict[str, Any]
    came: dict[int, tuple[socket.socket, dict[str, Any]]] = field(default_factory=dict)
    core: Core | None = None
    rails: Rails | None = None


class Server:
    """Lets ranks in, and starts a core for each lane once all its ranks are there.

    server = Server("algo-3", listen("127.0.0.1"), token, core="native")
    server.port
    server.close()
    """

    def __init__(
        self, host: str, listener: socket.socket, token: bytes, core: str | None = None, rails: Sequence[str] = ()
    ) -> None:
        self._host, self._core = host, select.choose(core)
        # Interfaces are the ranks' to choose: their calls come in at any address.
        self._rails = tuple(rails) if fabric_rails(rails) else ()
        # What is not there is said before ranks come.
        Rails(self._rails, "").close()
        self._changed = threading.Condition()
        self._groups: dict[tuple[str, int], _Group] = {}
        self._door = Door([listener], token, self._visit)

    @property
    def port(self) -> int:
        return self._door.port

    def stats(self) -> dict[str, Any]:
        """Return what was done so far: bytes and chunks by rank, and how many connections were refused."""
        with self._changed:
            cores_now = [group.core for group in self._groups.values() if group.core is not None]
        links = [link for core in cores_now for link in core.counts()]
        return {
            "host": self._host,
            "core": self._core,
            "refused": self._door.refused,
            "sent_bytes": sum(link.sent_bytes for link in links),
            "received_bytes": sum(link.received_bytes for link in links),
            "failures": [core.failure() for core in cores_now if core.failure()],
            "cpu_seconds": round(time.process_time(), 3),
        }

    def close(self) -> None:
        self._door.close()
        with self._changed:
            running = [group for group in self._groups.values() if group.core is not None]
        for group in running:
            if group.core is not None:
                group.core.close()
            if group.rails is not None:
                group.rails.close()

    def _visit(self, connection: socket.socket, hello: dict[str, Any]) -> None:
        member, members = int(hello["member"]), int(hello["members"])
        key = str(hello["session"]), int(hello["lane"])
        with self._changed:
            group = self._groups.setdefault(key, _Group(hello))
            for name in _SHARED:
                if hello[name] != group.hello[name]:
                    raise ParallelError(f"ranks disagree on {name}: {group.hello[name]} and {hello[name]}")
            if member in group.came or not 0 <= member < members:
                raise ParallelError(f"{hello['label']} came as host {member} of {members}, which is there already")
            group.came[member] = connection, hello
            if len(group.came) == members:
                group.core = self._start(group)
                self._changed.notify_all()
                return
            if self._changed.wait_for(lambda: group.core is not None, float(hello["join_timeout"])):
                return
            del group.came[member]
            absent = sorted(set(range(members)) - set(group.came))
        raise ParallelError(
            f"the server on {self._host} waited for the ranks of all {members} hosts: of hosts {absent} none came"
        )

    def _start(self, group: _Group) -> Core:
        links = []
        came = sorted(group.came.items())
        # Ranks send to the address by which the first of them came.
        group.rails = rails = Rails(self._rails, came[0][1][0].getsockname()[0])
        for member, (connection, said) in came:
            theirs = said.get("fabric")
            own = rails.answer(theirs)
            handshake.send(connection, {"fabric": own})
            carried = rails.carry(connection, own, theirs)
            carried.setblocking(False)
            if carried.family != socket.AF_UNIX:
                carried.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            links.append(LinkSpec(carried.detach(), Role.PEER, member, str(said["label"])))
        rails.start()
        hello = group.hello
        return select.make(
            self._core,
            CoreConfig(
                label=f"the server on {self._host}",
                member=-1,
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
                links=in_turn(links, int(hello["server"])),
            ),
        )


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
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
    ended.wait()
    server.close()
    print(json.dumps(server.stats()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
