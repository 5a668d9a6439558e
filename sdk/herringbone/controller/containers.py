"""Hosts that are containers: the client started them, and we were born with the connections to them.

    stream   what the host writes, in frames; while we hold it open, the host knows that we live
    ending   the engine's answer to a question that waits for the end: JSON, and the end of the connection

All else goes to the engine as requests of our own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from herringbone.controller.hosts import Host
from herringbone.controller.log_files import LogFile
from herringbone.engine.client import Engine, EngineRefusal, hijack, read_head, send
from herringbone_contract.errors import ArchiveError, EngineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from socket import socket
    from threading import Thread
    from typing import Any

    from herringbone.controller.config import ContainerOrder, ContainersOrder, HostOrder, Order
    from herringbone.controller.hosts import Renewal
    from herringbone.controller.retry import Attempt

_HEADER_BYTES = 8
_WORD_BYTES = 65_536
# What the shell says of a process that was killed: all that is known of a container that the engine forgot.
_KILLED_CODE = 137
_NOT_FOUND, _CONFLICT = 404, 409
_ENGINE_GONE = "the container engine went away while the job ran, and took the container with it"
# The kernel's word on memory reaches the engine on another way than the container's end does.
_MEMORY_SECONDS = 0.3


class Frames:
    """Takes the stream of a container apart: each frame is 4 bytes of kind, 4 of size, then what was written.

    >>> frames = Frames()
    >>> frames.text(bytes([1, 0, 0, 0, 0, 0, 0, 3]) + b"a"), frames.text(b"bc")
    (b'a', b'bc')
    """

    def __init__(self) -> None:
        self._header = b""
        self._left = 0

    def text(self, chunk: bytes) -> bytes:
        found = []
        place = 0
        while place < len(chunk):
            if self._left:
                end = min(place + self._left, len(chunk))
                found.append(chunk[place:end])
                self._left -= end - place
            else:
                end = place + _HEADER_BYTES - len(self._header)
                self._header += chunk[place:end]
                if len(self._header) == _HEADER_BYTES:
                    self._left = int.from_bytes(self._header[4:], "big")
                    self._header = b""
            place = end
        return b"".join(found)


class ContainerHost(Host):
    """A container and its stream."""

    def __init__(self, order: HostOrder, log: LogFile, container: ContainerOrder, engine: Engine) -> None:
        super().__init__(order, log)
        self.id = container["id"]
        self.ending = container["ending"]
        self.output = container["stream"]
        self._frames = Frames()
        self._word = b""
        self._engine = engine

    def signal(self, number: int) -> None:
        if self.exit_code is not None:
            return
        try:
            self._kill(number)
        except EngineError as error:
            # The engine may be gone, and our connections with it: then the loop hears of that.
            print(f"{self.name}: signal {number}: {error}", file=sys.stderr)

    def _kill(self, number: int) -> None:
        # What stands still hears no signal; it may be stopped again before it does.
        for _ in range(2):
            try:
                self._engine.post(f"/containers/{self.id}/kill", signal=signal.Signals(number).name)
            except EngineRefusal as error:
                # Else it has just ended.
                if error.status == _CONFLICT and self.rouse():
                    continue
            return

    def rouse(self) -> bool:
        """Have a paused container run on; say whether it was paused."""
        if not self.state().get("Paused"):
            return False
        self._engine.post(f"/containers/{self.id}/unpause")
        return True

    def state(self) -> dict[str, object]:
        """Return what the engine knows of the container, nothing once it has forgotten it."""
        try:
            found: dict[str, object] = self._engine.get(f"/containers/{self.id}/json")["State"]
        except EngineRefusal as error:
            if error.status != _NOT_FOUND:
                raise
            return {}
        return found

    def take_ending(self) -> int | None:
        """Return the exit code once the engine has given it, and let go of that connection; None before."""
        if self.ending is None:
            return None
        try:
            piece = os.read(self.ending, _WORD_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            piece = b""  # a connection that broke
        if piece:
            self._word += piece
            return None
        os.close(self.ending)
        self.ending = None
        try:
            return int(json.loads(self._word)["StatusCode"])
        except (ValueError, KeyError, TypeError):
            return self._ending_untold()

    def explain(self) -> None:
        """Find out whether memory ended it, or the loss of the engine: without one, a host stops by itself."""
        deadline = time.monotonic() + _MEMORY_SECONDS
        try:
            while not self.state().get("OOMKilled"):
                if self.exit_code != _KILLED_CODE or time.monotonic() > deadline:
                    return
                time.sleep(0.02)
            self.cause = f"out of memory: {self._limit()}"
        except EngineError:
            self._miss_engine()

    def _ending_untold(self) -> int:
        """The connection broke, so the engine was stopped, or the network to it is gone."""
        self._miss_engine()
        try:
            state = self.state()
        except EngineError:
            return _KILLED_CODE
        code = state.get("ExitCode")
        # A container that lost its controller's connection stops by itself: nothing is to be had from it any more.
        return code if isinstance(code, int) and code else _KILLED_CODE

    def _miss_engine(self) -> None:
        self.cause, self.lost = _ENGINE_GONE, True

    def _limit(self) -> str:
        limit = int(self._engine.get(f"/containers/{self.id}/json")["HostConfig"].get("Memory") or 0)
        if limit:
            return f"the container may use {limit / 2**20:.0f} MiB"
        return "the machine has no more"

    def _text(self, chunk: bytes) -> bytes:
        return self._frames.text(chunk)


class Containers:
    """The hosts of one job as containers of one engine, and the network between them."""

    def __init__(self, order: Order, containers: ContainersOrder) -> None:
        self._order = containers
        self._engine = Engine(containers["engine"])
        self._entries, self._retries = order["hosts"], order["retries"]
        self._tidying: Thread | None = None
        self.failed: Sequence[Attempt] = ()
        self.places: dict[str, str] = {}
        self.hosts = [
            ContainerHost(
                each,
                LogFile(f"{order['logs']}/{each['name']}.log"),
                containers["containers"][each["name"]],
                self._engine,
            )
            for each in self._entries
        ]

    def start(self) -> None:
        for host in self.hosts:
            for descriptor in (host.output, host.ending):
                assert descriptor is not None
                os.set_blocking(descriptor, False)
                os.set_inheritable(descriptor, False)

    def endings(self) -> Iterator[tuple[Host, int]]:
        for host in self.hosts:
            code = host.take_ending()
            if code is not None:
                yield host, code

    def sweep(self) -> None:
        pass  # a container's processes end with its first one

    def rouse(self) -> None:
        for host in self.hosts:
            if host.exit_code is None:
                try:
                    host.rouse()
                except EngineError as error:
                    print(f"{host.name}: {error}", file=sys.stderr)

    def collect(self) -> None:
        """Ask why hosts failed, fetch what they wrote, and have containers that no attempt needs removed meanwhile."""
        from threading import Thread

        for host in self.hosts:
            if host.exit_code and not host.cause:
                host.explain()
            try:
                self._fetch(host)
            except (EngineError, ArchiveError) as error:
                host.cause = host.cause or str(error)
                host.exit_code = host.exit_code or 1
        if len(self.failed) >= self._retries:
            self._tidying = Thread(target=self._remove_all)
            self._tidying.start()

    def told(self, failed: Sequence[Attempt]) -> dict[str, Any]:  # noqa: ARG002 - no other controller goes on
        return {}

    def begin_anew(self, failed: Sequence[Attempt]) -> Renewal:
        """Start the same containers once more, over new connections."""
        self.failed = failed
        try:
            self.hosts = [self._started_again(host) for host in self.hosts]
        except (EngineError, OSError) as error:
            self.hosts[0].log.say(f"[{self.hosts[0].name}] it cannot begin anew: {error}", time.time())
            return None
        return "here"

    def leave(self) -> None:
        if self._tidying is None:
            self._remove_all()
        else:
            self._tidying.join()

    def abandon(self) -> None:
        self._remove_all()

    def _started_again(self, host: ContainerHost) -> ContainerHost:
        host.clear()
        with self._engine.open() as stream, self._engine.open() as ending:
            start_container(self._engine, host.id, stream, ending, self._order["line"].encode())
            connections = {"stream": stream.detach(), "ending": ending.detach()}
        container: ContainerOrder = {**self._order["containers"][host.name], **connections}  # type: ignore[typeddict-item]
        entry = next(each for each in self._entries if each["name"] == host.name)
        again = ContainerHost(entry, host.log, container, self._engine)
        again.log_begins = host.log.size
        return again

    def _fetch(self, host: ContainerHost) -> None:
        folders = self._order["containers"][host.name]["fetched"]
        if folders:
            from pathlib import Path

            from herringbone.controller.container_files import fetch

            for inside, here in folders.items():
                fetch(self._engine, host.id, inside, Path(here), lambda text: host.log.say(text, time.time()))

    def _remove_all(self) -> None:
        from threading import Thread

        removals = [Thread(target=self._try, args=(remove_container, host.id)) for host in self.hosts]
        for removal in removals:
            removal.start()
        for removal in removals:
            removal.join()
        if self._order["network"] is not None:
            self._try(remove_network, self._order["network"])

    def _try(self, remove: Callable[[Engine, str], None], name: str) -> None:
        """Go on without it: what cannot be removed now, the next job's sweep finds."""
        try:
            remove(self._engine, name)
        except EngineError as error:
            print(error, file=sys.stderr)


def start_container(engine: Engine, container: str, stream: socket, ending: socket, line: bytes) -> None:
    """Start a container, its output and its end to come over these connections; `line` is told to it first.

    Attach first, so that not a byte is lost, and ask for the end before there can be one.
    """
    path = f"/containers/{container}"
    hijack(stream, f"{path}/attach", {"stream": True, "stdin": True, "stdout": True, "stderr": True})
    stream.sendall(line)
    send(ending, "POST", f"{path}/wait", {"condition": "next-exit"})
    read_head(ending)  # comes at once, and says that the engine watches; the rest comes at the end
    engine.post(f"{path}/start")


def remove_container(engine: Engine, container: str) -> None:
    """Kill and remove a container; one that is gone, or that another is removing, is no error."""
    try:
        engine.delete(f"/containers/{container}", force=True, v=True)
    except EngineRefusal as error:
        if error.status not in (_NOT_FOUND, _CONFLICT):
            raise


def remove_network(engine: Engine, network: str) -> None:
    """Remove a network; one that is gone is no error."""
    try:
        engine.delete(f"/networks/{network}")
    except EngineRefusal as error:
        if error.status != _NOT_FOUND:
            raise
