"""From a rank's settings to an engine whose connections stand."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_contract.reduce_servers import encode
from herringbone_parallel.reduce.cores import select
from herringbone_parallel.reduce.cores.base import CoreConfig, LinkSpec, Role, in_turn
from herringbone_parallel.reduce.engine import Engine, Held
from herringbone_parallel.reduce.join import arena, handshake, windows
from herringbone_parallel.reduce.join.arena import Arena
from herringbone_parallel.reduce.join.fabric import fabric_rails
from herringbone_parallel.reduce.join.listener import Door, call, listen
from herringbone_parallel.reduce.join.rails import Rails, rail_of
from herringbone_parallel.reduce.join.rendezvous import Attendee, Roster, meet, rank_zero
from herringbone_parallel.reduce.join.settings import Settings
from herringbone_parallel.reduce.join.topology import Topology

# A server names who did not come to it: it is given longer than it waits itself.
_MORE_SECONDS = 5.0


def join(settings: Settings, listener: socket.socket | None = None) -> Engine:
    """Meet the other ranks, connect to those and the servers that this rank exchanges chunks with.

        engine = join(Settings.from_environment())
        engine.all_reduce(gradients).wait()

    `listener` is rank 0's socket at `settings.meet`, where it has one already.

    Raises `ParallelError` naming who did not come, who refused, and what ranks disagree on.
    """
    core = select.choose(settings.core)
    rails = Rails(settings.rails, way_out(settings))
    addresses = rails.addresses
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as unless_joined:
        unless_joined.callback(rails.close)
        folder = Path(tempfile.mkdtemp(prefix="hb-reduce-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        listeners = [listen(address) for address in addresses]
        path = str(folder / "s")
        local = socket.socket(socket.AF_UNIX)
        local.bind(path)
        local.listen(64)
        visits = _Visits()
        door = Door([*listeners, local], settings.token, visits.visit)
        stack.callback(door.close)
        own = Attendee(
            settings.rank,
            settings.size,
            settings.host,
            tuple((address, listener.getsockname()[1]) for address, listener in zip(addresses, listeners, strict=True)),
            path,
            _agreed(settings),
            settings.called,
        )
        roster, refused = meet(settings, own, listener or rank_zero(settings))
        joining = _Joining(settings, roster, visits, rails)
        config = joining.connect()
        rails.start()
        held: tuple[Held, ...] = (*joining.arenas, rails)
        engine = Engine(config, core, settings, joining.topology, held, joining.window, refused + door.refused)
        unless_joined.pop_all()
        return engine


def _agreed(settings: Settings) -> dict[str, Any]:
    return {
        "the servers on helper hosts": encode(settings.servers),
        "the window": str(settings.window),
        "the elements that cost as much as a message": settings.message,
        "the networks of their rails": ", ".join(rail.provider for rail in fabric_rails(settings.rails)),
        "the format on the wire": settings.wire.name.lower() if settings.wire else "as it is",
    }


def way_out(settings: Settings) -> str:
    """Return the address of this host that leads to rank 0."""
    if settings.rank == 0:
        return settings.meet[0]
    infos = socket.getaddrinfo(*settings.meet, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = infos[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


class _Visits:
    """Connections from other ranks, kept until this one is ready for them."""

    def __init__(self) -> None:
        self._came: dict[tuple[int, int], tuple[socket.socket, dict[str, Any]]] = {}
        self._changed = threading.Condition()

    def visit(self, connection: socket.socket, hello: dict[str, Any]) -> None:
        with self._changed:
            self._came[Role(hello["role"]), int(hello["rank"])] = connection, hello
            self._changed.notify_all()

    def take(self, role: Role, rank: int, session: str, who: str, until: float) -> tuple[socket.socket, dict[str, Any]]:
        """Return the connection of another rank, and what it said; it waits for an answer."""
        with self._changed:
            if not self._changed.wait_for(lambda: (role, rank) in self._came, until - time.monotonic()):
                raise ParallelError(f"{who} came to rank 0 but did not connect: is there a way from its host to this?")
            connection, hello = self._came.pop((role, rank))
        if hello["session"] != session:
            raise ParallelError(f"{who} connected for another job: two jobs with the same token share addresses")
        return connection, hello


class _Joining:
    """The connections of one rank, as its place in the topology wants them."""

    def __init__(self, settings: Settings, roster: Roster, visits: _Visits, rails: Rails) -> None:
        self._settings, self._roster, self._visits, self._rails = settings, roster, visits, rails
        numbers = [rank.rank if rank.called is None else rank.called for rank in roster.ranks]
        self.topology = Topology.of([rank.host for rank in roster.ranks], numbers)
        self._until = time.monotonic() + settings.join_timeout
        hosts, helpers = self.topology.hosts, len(settings.servers)
        self.window = settings.window or windows.first_window(hosts, helpers)
        self._chunk_bytes, self._limit = windows.limit_of(settings.window or windows.most(hosts, helpers))
        self._local_limit = windows.local_limit(hosts, helpers, self.window, self._chunk_bytes)
        self.arenas: list[Arena] = []
        self._links: list[LinkSpec] = []

    def connect(self) -> CoreConfig:
        settings, topology = self._settings, self.topology
        rank, helpers = settings.rank, len(settings.servers)
        local, lanes, hosts = topology.local_rank(rank), topology.lanes, topology.hosts
        carries = local < lanes and hosts > 1
        own = self._own_config(local)
        try:
            if carries:
                for index in range(helpers):
                    self._to_helper(index)
                # Where helpers sum everything, ranks of different hosts have nothing to tell each other.
                for host, other in enumerate(topology.carriers(local) if helpers < hosts else ()):
                    if other != rank:
                        self._to_rank(Role.PEER, host, other)
            self._to_neighbours(own, local)
        except BaseException:
            for link in self._links:
                socket.socket(fileno=link.descriptor).close()
            raise
        # Hosts send to others from different starts on, or all would meet at the first one's port.
        return replace(own, links=in_turn(self._links, topology.host(rank)))

    def _own_config(self, local: int) -> CoreConfig:
        settings, topology = self._settings, self.topology
        rank = settings.rank
        return CoreConfig(
            label=topology.label(rank),
            member=topology.host(rank),
            members=topology.hosts,
            helpers=len(settings.servers),
            local=local,
            locals=len(topology.neighbours(rank)),
            lanes=topology.lanes,
            ranks=topology.size,
            chunk_bytes=self._chunk_bytes,
            limit=self._limit,
            local_limit=self._local_limit,
            silence=settings.silence,
            late=settings.late,
        )

    def _to_helper(self, index: int) -> None:
        settings, topology = self._settings, self.topology
        server, offer = settings.servers[index], self._rails.offer(index, settings.rank)
        label = f"the server on {server.host}"
        connection, answer = call(
            (server.address, server.port),
            label,
            settings.token,
            {
                "session": self._roster.session,
                "lane": topology.local_rank(settings.rank),
                "server": index,
                "member": topology.host(settings.rank),
                "members": topology.hosts,
                "chunk_bytes": self._chunk_bytes,
                "ring": self._limit.ring,
                "most": self._limit.chunks,
                "silence": settings.silence,
                "late": settings.late,
                "join_timeout": max(self._until - time.monotonic(), 0.1),
                "label": topology.label(settings.rank),
                "fabric": offer,
            },
            self._until,
            self._rails.source(index, settings.rank),
            _MORE_SECONDS,
        )
        connection = self._rails.carry(connection, offer, answer.get("fabric"))
        self._keep(connection, LinkSpec(connection.fileno(), Role.HELPER, index, label))

    def _to_rank(self, role: Role, index: int, other: int) -> socket.socket:
        """The lower rank of two listens."""
        settings = self._settings
        label, session = self.topology.label(other), self._roster.session
        over = self._rails if role is Role.PEER else None
        if settings.rank < other:
            connection, theirs = self._visits.take(role, other, session, label, self._until)
            offer = over.answer(theirs.get("fabric")) if over else None
            handshake.send(connection, {"fabric": offer})
        else:
            there = self._roster.ranks[other]
            rail = rail_of(other, settings.rank, len(there.addresses))
            where = there.local if role is Role.LOCAL else there.addresses[rail]
            offer = over.offer(other, settings.rank) if over else None
            hello = {"session": session, "role": role, "rank": settings.rank, "fabric": offer}
            source = over.source(other, settings.rank) if over else None
            connection, theirs = call(where, label, settings.token, hello, self._until, source)
        if over:
            connection = over.carry(connection, offer, theirs.get("fabric"))
            self._keep(connection, LinkSpec(connection.fileno(), role, index, label))
        return connection

    def _to_neighbours(self, config: CoreConfig, local: int) -> None:
        ranks = self.topology.neighbours(self._settings.rank)
        if len(ranks) == 1:
            return
        areas, size = len(ranks) - 1, config.local_limit.ring
        own = Arena.create(areas, size) if local < config.lanes else None
        self.arenas += [own] if own else []
        for index, other in enumerate(ranks):
            if index == local:
                continue
            connection = self._to_rank(Role.LOCAL, index, other)
            theirs = arena.swap(connection, own, areas, size)
            self.arenas += [theirs] if theirs else []
            outbox = theirs.address(arena.place_of(local, index)) if theirs else 0
            inbox = own.address(arena.place_of(index, local)) if own else 0
            label = self.topology.label(other)
            self._keep(connection, LinkSpec(connection.fileno(), Role.LOCAL, index, label, outbox, inbox))

    def _keep(self, connection: socket.socket, link: LinkSpec) -> None:
        """Hand the descriptor over: it is the core's from now on."""
        connection.settimeout(None)
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.detach()
        self._links.append(link)
