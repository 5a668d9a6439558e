"""Join a job's ranks: from a rank's settings to an engine with open connections.

[1] listen        one TCP socket per rail, one Unix socket for the ranks of the same host
[2] rendezvous    all ranks learn the others' addresses from rank 0
[3] connect       to helpers, to the same lane's ranks on other hosts, to the ranks of the same host
[4] engine        takes over the connections, and with them a core's I/O thread
"""

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
from herringbone_parallel.reduce.cores.base import CoreConfig, LinkSpec, Role, rotated
from herringbone_parallel.reduce.engine import Engine, Resource
from herringbone_parallel.reduce.join import arena, windows
from herringbone_parallel.reduce.join.arena import Arena
from herringbone_parallel.reduce.join.fabric import fabric_rails
from herringbone_parallel.reduce.join.handshake import AuthenticatedConnection
from herringbone_parallel.reduce.join.listener import Acceptor, connect, listen
from herringbone_parallel.reduce.join.rails import Rails, rail_of
from herringbone_parallel.reduce.join.rendezvous import RankInfo, Roster, exchange, rank_zero
from herringbone_parallel.reduce.join.settings import Settings
from herringbone_parallel.reduce.join.topology import Topology
from herringbone_parallel.reduce.join.wire_values import MOST_RANKS, text, whole

# A server waits until the deadline and then names the hosts that are missing; its ranks wait longer for that message.
_EXTRA_SECONDS = 5.0


def join(settings: Settings, listener: socket.socket | None = None) -> Engine:
    """Find the other ranks, connect to the ranks and servers that this rank exchanges chunks with, return the engine.

        engine = join(Settings.from_environment())
        engine.all_reduce(gradients).wait()

    `listener` is rank 0's socket at `settings.rendezvous`, if it has one already.

    Raises `ParallelError` naming the rank or server that is missing or refuses, or the setting on which ranks disagree.
    """
    core = select.choose(settings.core)
    rails = Rails(settings.rails, local_address(settings))
    addresses = rails.addresses
    with contextlib.ExitStack() as cleanup, contextlib.ExitStack() as on_failure:
        on_failure.callback(rails.close)
        # A short path of its own: the path of a Unix socket is limited to about 100 bytes.
        folder = Path(tempfile.mkdtemp(prefix="hb-reduce-"))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        listeners = [listen(address) for address in addresses]
        local_path = str(folder / "s")
        local_listener = socket.socket(socket.AF_UNIX)
        local_listener.bind(local_path)
        local_listener.listen(64)
        # Listen before the rendezvous: other ranks connect as soon as they have the roster.
        incoming = _Incoming()
        acceptor = Acceptor([*listeners, local_listener], settings.token, own_label(settings), incoming.admit)
        cleanup.callback(incoming.close)
        cleanup.callback(acceptor.close)
        info = RankInfo(
            settings.rank,
            settings.size,
            settings.host,
            tuple((address, listener.getsockname()[1]) for address, listener in zip(addresses, listeners, strict=True)),
            local_path,
            _agreed(settings),
            settings.job_rank,
        )
        roster, refused = exchange(settings, info, listener or rank_zero(settings))
        connector = _Connector(settings, roster, incoming, rails)
        config = connector.connect()
        # No connection is added after this line, as relays require.
        rails.start()
        resources: tuple[Resource, ...] = (*connector.arenas, rails)
        engine = Engine(
            config, core, settings, connector.topology, resources, connector.window, refused + acceptor.refused
        )
        # From here on the engine closes the rails.
        on_failure.pop_all()
        return engine


def _agreed(settings: Settings) -> dict[str, Any]:
    """Return the settings that must be equal on all ranks, by the names that an error message gives them."""
    return {
        # Ranks that differed in one of these would cut buffers differently, or wait for different servers.
        "the servers on helper hosts": encode(settings.servers),
        "the window": str(settings.window),
        "the elements that cost as much as a message": settings.message,
        "the networks of their rails": ", ".join(rail.provider for rail in fabric_rails(settings.rails)),
        "the format on the wire": settings.wire.name.lower() if settings.wire else "as it is",
    }


def own_label(settings: Settings) -> str:
    """Return the name of this rank in messages, as `Topology.label` gives it once the ranks know each other."""
    return f"rank {settings.rank if settings.job_rank is None else settings.job_rank} on {settings.host}"


def local_address(settings: Settings) -> str:
    """Return the address of this host on its route to rank 0."""
    if settings.rank == 0:
        return settings.rendezvous[0]
    infos = socket.getaddrinfo(*settings.rendezvous, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = infos[0]
    with socket.socket(family, kind, protocol) as probe:
        # Connecting a datagram socket sends nothing: the kernel only chooses the route and thereby the local address.
        probe.connect(address)
        return str(probe.getsockname()[0])


class _Incoming:
    """Connections from other ranks, kept until this rank is ready for them."""

    def __init__(self) -> None:
        # `admit` runs in the acceptor's threads, `take` in the joining thread; `_changed` guards `_connections`.
        self._connections: dict[tuple[int, int], tuple[AuthenticatedConnection, dict[str, Any]]] = {}
        self._changed = threading.Condition()

    def admit(self, connection: AuthenticatedConnection, hello: dict[str, Any]) -> None:
        """Keep a connection with its hello."""
        key = Role(whole(hello, "role", 0, len(Role) - 1)), whole(hello, "rank", 0, MOST_RANKS)
        text(hello, "session")
        with self._changed:
            if key in self._connections:
                raise ParallelError(f"rank {key[1]} connected twice")
            self._connections[key] = connection, hello
            self._changed.notify_all()

    def close(self) -> None:
        """Close the connections that nobody has taken."""
        with self._changed:
            for connection, _ in self._connections.values():
                connection.close()
            self._connections.clear()

    def take(
        self, role: Role, rank: int, session: str, label: str, deadline: float
    ) -> tuple[AuthenticatedConnection, dict[str, Any]]:
        """Wait for another rank's connection; return it with its hello. The other rank waits for an answer."""
        with self._changed:
            if not self._changed.wait_for(lambda: (role, rank) in self._connections, deadline - time.monotonic()):
                raise ParallelError(
                    f"{label} reached rank 0 but did not connect to this rank: is there a route from its host?"
                )
            connection, hello = self._connections.pop((role, rank))
        if hello["session"] != session:
            connection.close()
            raise ParallelError(f"{label} connected for another job: two jobs with the same token share addresses")
        return connection, hello


class _Connector:
    """Makes the connections that one rank's position in the topology requires."""

    def __init__(self, settings: Settings, roster: Roster, incoming: _Incoming, rails: Rails) -> None:
        self._settings, self._roster, self._incoming, self._rails = settings, roster, incoming, rails
        job_ranks = [rank.rank if rank.job_rank is None else rank.job_rank for rank in roster.ranks]
        self.topology = Topology.of([rank.host for rank in roster.ranks], job_ranks)
        # The time limit starts anew, because the rendezvous may have used up most of the first one.
        self._deadline = time.monotonic() + settings.join_timeout
        hosts, helpers = self.topology.hosts, len(settings.servers)
        self.window = settings.window or windows.first_window(hosts, helpers)
        # Rings and arenas cannot grow later, so they are laid out for the largest window.
        memory_window = settings.window or windows.memory_window(hosts, helpers)
        self._chunk_bytes, self._limit = memory_window.chunk_bytes, windows.server_limit(memory_window)
        self._local_limit = windows.local_limit(hosts, helpers, self.window, self._chunk_bytes)
        self.arenas: list[Arena] = []
        self._links: list[LinkSpec] = []

    def connect(self) -> CoreConfig:
        """Make all connections; return the configuration of a core that takes them over."""
        settings, topology = self._settings, self.topology
        rank, helpers = settings.rank, len(settings.servers)
        local, lanes, hosts = topology.local_rank(rank), topology.lanes, topology.hosts
        # A rank that carries no lane exchanges chunks with the ranks of its host only.
        carries = local < lanes and hosts > 1
        config = self._config_without_links(local)
        # All ranks make their connections in the same order, so that no two of them wait for each other.
        try:
            if carries:
                for index in range(helpers):
                    self._connect_helper(index)
                # If helpers sum everything, ranks of different hosts have nothing to exchange.
                for host, other in enumerate(topology.carriers(local) if helpers < hosts else ()):
                    if other != rank:
                        self._connect_rank(Role.PEER, host, other)
            self._connect_neighbours(config, local)
        except BaseException:
            # `_keep` detached these descriptors from their sockets, so nothing else closes them.
            for link in self._links:
                socket.socket(fileno=link.descriptor).close()
            raise
        # Each host starts with a different server, so that they do not all send to the same port at first.
        return replace(config, links=rotated(self._links, topology.host(rank)))

    def _config_without_links(self, local: int) -> CoreConfig:
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

    def _connect_helper(self, index: int) -> None:
        settings, topology = self._settings, self.topology
        server, offer = settings.servers[index], self._rails.offer(index, settings.rank)
        label = f"the server on {server.host}"
        authenticated, answer = connect(
            (server.address, server.port),
            label,
            settings.token,
            {
                "session": self._roster.session,
                "lane": topology.local_rank(settings.rank),
                "server": index,
                "member": topology.host(settings.rank),
                "members": topology.hosts,
                # The server allocates its rings by these three values, so all ranks of a lane must send the same.
                "chunk_bytes": self._chunk_bytes,
                "ring": self._limit.ring,
                "most": self._limit.chunks,
                "silence": settings.silence,
                "late": settings.late,
                "join_timeout": max(self._deadline - time.monotonic(), 0.1),
                "label": topology.label(settings.rank),
                "fabric": offer,
            },
            self._deadline,
            self._rails.source(index, settings.rank),
            _EXTRA_SECONDS,
        )
        connection = self._rails.carry(authenticated.socket, offer, answer.get("fabric"))
        self._keep(connection, LinkSpec(connection.fileno(), Role.HELPER, index, label))

    def _connect_rank(self, role: Role, index: int, other: int) -> socket.socket:
        """Return the connection to another rank: the lower rank of the two listens, the higher one connects."""
        settings = self._settings
        label, session = self.topology.label(other), self._roster.session
        # Ranks of one host use a Unix socket, which no rail carries.
        rails = self._rails if role is Role.PEER else None
        if settings.rank < other:
            incoming, theirs = self._incoming.take(role, other, session, label, self._deadline)
            offer = rails.answer(theirs.get("fabric")) if rails else None
            # The connecting rank waits for this answer, which also carries this end's offer.
            incoming.send({"fabric": offer})
            connection = incoming.socket
        else:
            info = self._roster.ranks[other]
            rail = rail_of(other, settings.rank, len(info.addresses))
            address = info.local_path if role is Role.LOCAL else info.addresses[rail]
            offer = rails.offer(other, settings.rank) if rails else None
            hello = {"session": session, "role": role, "rank": settings.rank, "fabric": offer}
            source = rails.source(other, settings.rank) if rails else None
            outgoing, theirs = connect(address, label, settings.token, hello, self._deadline, source)
            connection = outgoing.socket
        if rails:
            connection = rails.carry(connection, offer, theirs.get("fabric"))
            self._keep(connection, LinkSpec(connection.fileno(), role, index, label))
        return connection

    def _connect_neighbours(self, config: CoreConfig, local: int) -> None:
        """Connect to the ranks of the same host, and exchange shared memory with them."""
        ranks = self.topology.neighbours(self._settings.rank)
        if len(ranks) == 1:
            return
        slots, size = len(ranks) - 1, config.local_limit.ring
        # Only a rank that carries a lane collects the others' chunks of it, so only that rank needs an arena.
        own = Arena.create(slots, size) if local < config.lanes else None
        self.arenas += [own] if own else []
        for index, other in enumerate(ranks):
            if index == local:
                continue
            connection = self._connect_rank(Role.LOCAL, index, other)
            # Over the Unix socket: only such a socket can pass descriptors.
            theirs = arena.swap(connection, own, slots, size)
            self.arenas += [theirs] if theirs else []
            outbox = theirs.address(arena.slot_of(local, index)) if theirs else 0
            inbox = own.address(arena.slot_of(index, local)) if own else 0
            label = self.topology.label(other)
            self._keep(connection, LinkSpec(connection.fileno(), Role.LOCAL, index, label, outbox, inbox))

    def _keep(self, connection: socket.socket, link: LinkSpec) -> None:
        """Detach the descriptor, which belongs to the core from now on."""
        connection.settimeout(None)
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            # A window is a few small messages: delaying them to fill packets would leave the link idle.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.detach()
        self._links.append(link)
