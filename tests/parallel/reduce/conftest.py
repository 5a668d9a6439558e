"""Ranks and servers of a small job without a launcher: in threads of this process, or in processes of their own."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from herringbone_contract.constants import RankVariable, ReduceVariable
from herringbone_contract.reduce_servers import ReduceServer
from herringbone_entry.channel.reserved_port import ReservedPort
from herringbone_parallel.reduce import build
from herringbone_parallel.reduce.cores import native
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.join.listener import listen
from herringbone_parallel.reduce.join.settings import Settings
from herringbone_parallel.reduce.joining import join
from herringbone_parallel.reduce.server import Server

if native.library() is None:
    # A source tree without an installation: compile the core as an editable installation does.
    build.main([])
    native.library.cache_clear()
KINDS = ("native", "python", "mixed") if native.library() else ("python",)
# `sanitize` watches the native core, and the core in Python only makes its tests longer.
if "SANITIZED" in os.environ:
    KINDS = ("native", "mixed")


def kinds_of(kind: str, count: int) -> list[str]:
    """Return the core of each of `count` processes; "mixed" alternates."""
    return [("native", "python")[index % 2] if kind == "mixed" else kind for index in range(count)]


@dataclass
class World:
    """The engines of all ranks, and their servers."""

    engines: list[Engine]
    servers: list[Server]

    def run(self, work: Callable[[Engine], Any]) -> list[Any]:
        """Run `work` on all ranks at once; return each rank's result."""
        with ThreadPoolExecutor(len(self.engines)) as pool:
            return list(pool.map(work, self.engines))

    def close(self) -> None:
        self.run(Engine.close)
        for server in self.servers:
            server.close()


@pytest.fixture
def world() -> Iterator[Callable[..., World]]:
    """Yield a function that makes a `World` of ranks on `hosts` (one name per rank) and `helpers` servers."""
    worlds: list[World] = []

    def make(hosts: Sequence[str], helpers: int = 0, kind: str = "python", **settings: Any) -> World:
        world = start(hosts, helpers, kind, **settings)
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        world.close()
    # A thread that survives `close` would keep its connections.
    assert not [thread for thread in threading.enumerate() if thread.name == "herringbone-reduce"]


def start(hosts: Sequence[str], helpers: int = 0, kind: str = "python", **settings: Any) -> World:
    token = secrets.token_bytes(16)
    cores = kinds_of(kind, helpers + len(hosts))
    rails = settings.get("rails", ())
    servers = [Server(f"helper-{i}", listen("127.0.0.1"), token, cores[i], rails) for i in range(helpers)]
    addresses = tuple(ReduceServer(f"helper-{i}", "127.0.0.1", server.port) for i, server in enumerate(servers))
    port = ReservedPort()
    number = port.number
    port.release()
    common = {"size": len(hosts), "rendezvous": ("127.0.0.1", number), "token": token, "servers": addresses, **settings}

    def join_rank(rank: int) -> Engine:
        return join(Settings(**{"rank": rank, "host": hosts[rank], "core": cores[helpers + rank], **common}))

    with ThreadPoolExecutor(len(hosts)) as pool:
        return World(list(pool.map(join_rank, range(len(hosts)))), servers)


class Job:
    """Processes of ranks and servers; each gets the token through a pipe.

    `prefixes` holds a command for each rank in which it runs, such as `ip netns exec`.
    """

    def __init__(
        self,
        work: str,
        hosts: Sequence[str],
        helpers: int,
        kind: str,
        address: str = "127.0.0.1",
        prefixes: Sequence[Sequence[str]] = (),
    ) -> None:
        cores = kinds_of(kind, helpers + len(hosts))
        token = secrets.token_bytes(16).hex().encode()
        port = ReservedPort()
        port.release()
        self.servers = [
            self._start("herringbone_parallel.reduce.server", [], token, cores[i], {ReduceVariable.HOST: f"helper-{i}"})
            for i in range(helpers)
        ]
        ports = [json.loads(server.stdout.readline())["port"] for server in self.servers]
        common = {
            RankVariable.WORLD_SIZE: str(len(hosts)),
            ReduceVariable.MEET: f"{address}:{port.number}",
            ReduceVariable.SERVERS: ",".join(
                f"helper-{i}=127.0.0.1:{server_port}" for i, server_port in enumerate(ports)
            ),
        }
        self.ranks = [
            self._start(
                "tests.parallel.reduce.ranks",
                [work],
                token,
                cores[helpers + rank],
                {**common, RankVariable.RANK: str(rank), ReduceVariable.HOST: host},
                prefixes[rank] if prefixes else (),
            )
            for rank, host in enumerate(hosts)
        ]

    def _start(
        self,
        module: str,
        arguments: list[str],
        token: bytes,
        core: str,
        variables: dict[str, str],
        prefix: Sequence[str] = (),
    ) -> Any:
        reads, writes = os.pipe()
        os.write(writes, token)
        os.close(writes)
        environment = {
            **os.environ,
            "HERRINGBONE_REDUCE": core,
            ReduceVariable.TOKEN_FILE: f"/dev/fd/{reads}",
            **variables,
        }
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", module, *arguments],
            env=environment,
            pass_fds=[reads],
            stdout=subprocess.PIPE,
            text=True,
        )
        os.close(reads)
        return process

    def expect(self, rank: int, at: str) -> dict[str, Any]:
        """Return the rank's next line, which must report the event `at`."""
        line = self.ranks[rank].stdout.readline()
        report = json.loads(line) if line else {}
        assert report.get("at") == at, (rank, line)
        return report

    def wait_until_running(self) -> None:
        """Wait until all ranks have joined and summed a few buffers."""
        for rank in range(len(self.ranks)):
            self.expect(rank, "joined")
        for rank in range(len(self.ranks)):
            self.expect(rank, "running")

    def end(self) -> None:
        """Kill all processes."""
        for process in [*self.ranks, *self.servers]:
            process.kill()
            process.stdout.close()
            process.wait()


@pytest.fixture
def job() -> Iterator[Any]:
    jobs: list[Job] = []

    def make(work: str, hosts: Sequence[str], helpers: int = 0, kind: str = KINDS[0], **network: Any) -> Job:
        jobs.append(Job(work, hosts, helpers, kind, **network))
        return jobs[-1]

    yield make
    for started in jobs:
        started.end()
