"""Ranks and servers of a small job in the threads of this process: real sockets, real shared memory, no launcher."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from herringbone_entry.port import ReservedPort
from herringbone_parallel.reduce import Engine, Settings, build, join, native
from herringbone_parallel.reduce.door import listen
from herringbone_parallel.reduce.server import Server
from herringbone_spec.reduce_servers import ReduceServer

if native.library() is None:
    # A tree that was not installed: compile as an editable install does.
    build.main([])
    native.library.cache_clear()
KINDS = ("native", "python", "mixed") if native.library() else ("python",)


def kinds_of(kind: str, count: int) -> list[str]:
    """Which core each of `count` processes has; "mixed" alternates."""
    return [("native", "python")[index % 2] if kind == "mixed" else kind for index in range(count)]


@dataclass
class World:
    """The engines of all ranks, and their servers."""

    engines: list[Engine]
    servers: list[Server]

    def run(self, work: Callable[[Engine], Any]) -> list[Any]:
        """Do the same on every rank at once; return what each returned."""
        with ThreadPoolExecutor(len(self.engines)) as pool:
            return list(pool.map(work, self.engines))

    def close(self) -> None:
        self.run(Engine.close)
        for server in self.servers:
            server.close()


@pytest.fixture
def world() -> Iterator[Callable[..., World]]:
    """Makes a `World` of ranks on `hosts` (one name per rank) and `helpers` servers."""
    made: list[World] = []

    def make(hosts: Sequence[str], helpers: int = 0, kind: str = "python", **settings: Any) -> World:
        world = start(hosts, helpers, kind, **settings)
        made.append(world)
        return world

    yield make
    for world in made:
        world.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "herringbone-reduce"]


def start(hosts: Sequence[str], helpers: int = 0, kind: str = "python", **settings: Any) -> World:
    token = secrets.token_bytes(16)
    cores = kinds_of(kind, helpers + len(hosts))
    servers = [Server(f"helper-{i}", listen("127.0.0.1"), token, cores[i]) for i in range(helpers)]
    addresses = tuple(ReduceServer(f"helper-{i}", "127.0.0.1", server.port) for i, server in enumerate(servers))
    port = ReservedPort()
    number = port.number
    port.release()
    common = {"size": len(hosts), "meet": ("127.0.0.1", number), "token": token, "servers": addresses, **settings}

    def one(rank: int) -> Engine:
        return join(Settings(**{"rank": rank, "host": hosts[rank], "core": cores[helpers + rank], **common}))

    with ThreadPoolExecutor(len(hosts)) as pool:
        return World(list(pool.map(one, range(len(hosts)))), servers)
