"""Hosts that are containers: the client started them, and the controller inherited two connections to each.

    stream   the host's output, in frames; while the controller holds it open, the host knows that the controller lives.
             The other way: the private line, and then requests of clients
    ending   the engine's answer to a request that waits for the end: JSON, then the end of the connection

Everything else goes to the engine as separate requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from functools import partial

from herringbone.controller.containers.calls import (
    CONFLICT,
    NOT_FOUND,
    remove_container,
    remove_network,
    start_container,
)
from herringbone.controller.hosts import Host, Restart, Site, next_hosts
from herringbone.controller.log_files import LogFile, complain
from herringbone.engine.client import Engine, EngineRefusal
from herringbone_contract.errors import ArchiveError, EngineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from threading import Thread

    from herringbone.controller.retry import Attempt
    from herringbone.protocols.controller_config import ContainerConfig, ContainersConfig, ControllerConfig, HostConfig

_HEADER_BYTES = 8
_ANSWER_BYTES = 65_536
# The shell's exit code of a killed process: the only guess for a container that the engine no longer knows.
_KILLED_CODE = 137
_ENGINE_GONE = "the container engine went away while the job ran, and took the container with it"
_SIGNAL_CODE = 128
_ENDED_BY_OTHERS = (
    "somebody other than Herringbone stopped the container (`docker stop`, `docker kill` and `docker rm -f` do so)"
)
# The kernel's out-of-memory event reaches the engine on another path than the container's end, and may come later.
_MEMORY_SECONDS = 0.3


class Frames:
    """Removes the frames of a container's stream: 4 bytes of kind, 4 bytes of size, then the output.

    >>> frames = Frames()
    >>> frames.text(bytes([1, 0, 0, 0, 0, 0, 0, 3]) + b"a"), frames.text(b"bc")
    (b'a', b'bc')
    """

    def __init__(self) -> None:
        # A read may end anywhere, also inside a header.
        self._header = b""
        self._frame_left = 0

    def text(self, chunk: bytes) -> bytes:
        pieces = []
        start = 0
        while start < len(chunk):
            if self._frame_left:
                end = min(start + self._frame_left, len(chunk))
                pieces.append(chunk[start:end])
                self._frame_left -= end - start
            else:
                end = start + _HEADER_BYTES - len(self._header)
                self._header += chunk[start:end]
                # The kind (stdout or stderr) does not matter: both go into the same log.
                if len(self._header) == _HEADER_BYTES:
                    self._frame_left = int.from_bytes(self._header[4:], "big")
                    self._header = b""
            start = end
        return b"".join(pieces)


class ContainerHost(Host):
    """A container and its connections; `reads_line` means that its program is our supervisor."""

    def __init__(
        self, config: HostConfig, log: LogFile, container: ContainerConfig, engine: Engine, *, reads_line: bool
    ) -> None:
        super().__init__(config, log)
        # A foreign image would take a request for input of its own program.
        self._reads_line = reads_line
        self.id = container["id"]
        self.ending = container["ending"]
        self.output = container["stream"]
        self._frames = Frames()
        self._answer = b""
        self._engine = engine
        self._begun, self._is_signalled = time.time(), False

    def tell(self, request: bytes) -> bool:
        # The same connection as the output, which `close_output` closes.
        self.line = self.output if self._reads_line else None
        return super().tell(request)

    def signal(self, number: int) -> None:
        # An ended container keeps its name until it is removed, and the engine would refuse the signal.
        if self.exit_code is not None:
            return
        self._is_signalled |= number != signal.SIGCONT
        try:
            self._kill(number)
        except EngineError as error:
            # When the engine is gone, its connections break as well, and the loop handles that as the host's end.
            complain(f"{self.name}: signal {number}: {error}")

    def _kill(self, number: int) -> None:
        # The engine refuses to signal a paused container. Somebody may pause it again between the two requests.
        for _ in range(2):
            try:
                self._engine.post(f"/containers/{self.id}/kill", signal=signal.Signals(number).name)
            except EngineRefusal as error:
                # A conflict means that the container is paused, or that it has just ended.
                if error.status == CONFLICT and self.unpause():
                    continue
            return

    def unpause(self) -> bool:
        """Let a paused container go on; return whether it was paused."""
        if not self.state().get("Paused"):
            return False
        self._engine.post(f"/containers/{self.id}/unpause")
        return True

    def state(self) -> dict[str, object]:
        """Return the container's state in the engine; empty when the engine no longer knows the container."""
        try:
            state: dict[str, object] = self._engine.get(f"/containers/{self.id}/json")["State"]
        except EngineRefusal as error:
            # Not found: somebody removed the container, for example with `docker rm -f`.
            if error.status != NOT_FOUND:
                raise
            return {}
        return state

    def take_ending(self) -> int | None:
        """Return the exit code once the engine has sent it, and close that connection; None before."""
        if self.ending is None:
            return None
        try:
            piece = os.read(self.ending, _ANSWER_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            # A broken connection is the end of the answer, as end-of-file is.
            piece = b""
        if piece:
            self._answer += piece
            return None
        os.close(self.ending)
        self.ending = None
        try:
            return int(json.loads(self._answer)["StatusCode"])
        # A connection that broke leaves an empty or incomplete answer.
        except (ValueError, KeyError, TypeError):
            return self._code_without_answer()

    def explain(self) -> None:
        """Set `cause` if memory, another client of the engine, or the engine's loss ended the host.

        Without an engine a host stops by itself.
        """
        deadline = time.monotonic() + _MEMORY_SECONDS
        try:
            if self._is_ended_by_others():
                # The script is not the reason, so the job may have another attempt.
                self.cause, self.lost = _ENDED_BY_OTHERS, True
                return
            # Only a SIGKILL can come from the kernel's out-of-memory killer, so other codes need no wait.
            while not self.state().get("OOMKilled"):
                if self.exit_code != _KILLED_CODE or time.monotonic() > deadline:
                    return
                time.sleep(0.02)
            self.cause = f"out of memory: {self._memory_limit()}"
        except EngineError:
            self._mark_engine_gone()

    def _is_ended_by_others(self) -> bool:
        """Report whether another client had the engine send the container the signal by which it ended."""
        number = (self.exit_code or 0) - _SIGNAL_CODE
        if self._is_signalled or number <= 0:
            return False
        filters = json.dumps({"container": [self.id], "event": ["kill"]})
        # Without an end, the engine would wait for further events.
        query = {"since": int(self._begun), "until": f"{time.time():.9f}", "filters": filters}
        events = self._engine.stream("GET", "/events", query)
        return str(number) in {event.get("Actor", {}).get("Attributes", {}).get("signal") for event in events}

    def _code_without_answer(self) -> int:
        """Return the exit code after a broken connection: the engine was stopped, or the network to it is gone."""
        self._mark_engine_gone()
        try:
            state = self.state()
        except EngineError:
            return _KILLED_CODE
        code = state.get("ExitCode")
        # A container that lost its controller's connection stops by itself, so even code 0 is no success.
        return code if isinstance(code, int) and code else _KILLED_CODE

    def _mark_engine_gone(self) -> None:
        self.cause, self.lost = _ENGINE_GONE, True

    def _memory_limit(self) -> str:
        limit = int(self._engine.get(f"/containers/{self.id}/json")["HostConfig"].get("Memory") or 0)
        if limit:
            return f"the container may use {limit / 2**20:.0f} MiB"
        return "the machine has no more"

    def _text(self, chunk: bytes) -> bytes:
        return self._frames.text(chunk)


class Containers(Site):
    """The hosts of one job as containers of one engine, and the network between them.

    The kernel ends a container's processes with its first one, so there are no orphans.
    """

    hosts: list[ContainerHost]

    def __init__(self, config: ControllerConfig, containers: ContainersConfig) -> None:
        self._config = containers
        self._engine = Engine(containers["engine"])
        self._layers = f"{os.path.dirname(config['logs'])}/layers"  # noqa: PTH120
        self._host_configs, self._retries, self._logs = config["hosts"], config["retries"], config["logs"]
        # Set by the loop's thread in `collect`, and joined by it in `remove`.
        self._removal: Thread | None = None
        self.hosts = [
            ContainerHost(
                host,
                LogFile(f"{config['logs']}/{host['name']}.log"),
                containers["containers"][host["name"]],
                self._engine,
                reads_line=bool(containers["line"]),
            )
            for host in self._host_configs
        ]

    def start(self) -> None:
        """Prepare the connections; the client has started the containers."""
        for host in self.hosts:
            for descriptor in (host.output, host.ending):
                assert descriptor is not None
                # The loop must never wait in the read of one host.
                os.set_blocking(descriptor, False)
                # A child that held the stream open would keep the hosts from noticing the controller's death.
                os.set_inheritable(descriptor, False)

    def load(self) -> None:
        # All of them are imported in functions, because the start of the hosts does without them.
        import http.client
        import subprocess
        import threading
        import urllib.parse

        from herringbone.controller.containers import files

        _ = http.client, subprocess, threading, urllib.parse, files

    def on_host_failure(self) -> None:
        """Let paused and stopped hosts go on, so that they receive the failure notice and end by themselves.

        A stopped supervisor took no SIGTERM, and the job ended only with the SIGKILL after the whole grace period.
        """
        for host in self.hosts:
            if host.exit_code is None:
                try:
                    host.unpause()
                except EngineError as error:
                    complain(f"{host.name}: {error}")
                host.signal(signal.SIGCONT)

    def collect(self) -> None:
        """Ask why hosts failed, fetch their files, and start to remove containers that no attempt needs."""
        from threading import Thread

        from herringbone.controller.retry import num_failed

        for host in self.hosts:
            if host.exit_code and not host.cause:
                host.explain()
            try:
                self._fetch(host)
            except (EngineError, ArchiveError) as error:
                host.cause = host.cause or str(error)
                # A host whose files could not be fetched has failed, even if its program succeeded.
                host.exit_code = host.exit_code or 1
        if num_failed(self.failed_attempts) >= self._retries and self.planned is None:
            # Removal takes the engine a while, and the controller packs the model meanwhile. `remove` joins this.
            self._removal = Thread(target=self._remove_all)
            self._removal.start()

    def restart(self, failed: Sequence[Attempt]) -> Restart:
        """Start the same containers again, over new connections."""
        self.failed_attempts = failed
        nexts = next_hosts(self._host_configs, self.hosts, failed, self._logs)
        self.hosts = [self._restart_host(config, log) for config, log in nexts]
        return Restart.HERE

    def remove(self) -> None:
        if self._removal is None:
            self._remove_all()
        else:
            self._removal.join()

    def abandon(self) -> None:
        self._remove_all()

    def _restart_host(self, config: HostConfig, log: LogFile) -> ContainerHost:
        container = self._config["containers"][config["name"]]
        # The tree is mounted in the container, so files of the failed attempt must go before the start.
        Host(config, log).clear()
        with self._engine.open() as stream, self._engine.open() as ending:
            start_container(self._engine, container["id"], stream, ending, self._config["line"].encode())
            # Detached only after the start succeeded, so that an error closes both.
            connections = {"stream": stream.detach(), "ending": ending.detach()}
        container = {**container, **connections}  # type: ignore[typeddict-item]
        restarted = ContainerHost(config, log, container, self._engine, reads_line=bool(self._config["line"]))
        # Policies and the log tail must not see lines of the failed attempt.
        restarted.log_begins = log.begin_attempt()
        return restarted

    def _fetch(self, host: ContainerHost) -> None:
        folders = self._config["containers"][host.name]["fetched"]
        if folders:
            from pathlib import Path

            from herringbone.controller.containers.files import fetch

            for inside, target in folders.items():
                fetch(self._engine, host.id, inside, Path(target), lambda text: host.log.say(text, time.time()))

    def _remove_all(self) -> None:
        from threading import Thread

        # Root can remove what the kernel leaves in layers; another user needs the engine, and an image with `rm`.
        has_layers = os.getuid() != 0 and os.path.isdir(self._layers)  # noqa: PTH112
        image = self._image() if has_layers else None
        # In parallel: the engine takes about as long for all of them as for one.
        # All of the job, of which some may be in no host of this attempt.
        containers = [container["id"] for container in self._config["containers"].values()]
        removals = [Thread(target=self._try, args=(remove_container, container)) for container in containers]
        for removal in removals:
            removal.start()
        for removal in removals:
            removal.join()
        if image is not None:
            from herringbone.controller.containers.files import clear_layers

            self._try(partial(clear_layers, image=image), self._layers)
        # The engine refuses to remove a network that has containers.
        if self._config["network"] is not None:
            self._try(remove_network, self._config["network"])

    def _image(self) -> str | None:
        """Return the image of the containers; None where the engine no longer knows them."""
        with contextlib.suppress(EngineError):
            return str(self._engine.get(f"/containers/{self.hosts[0].id}/json")["Image"])
        return None

    def _try(self, remove: Callable[[Engine, str], None], name: str) -> None:
        """Remove one object; the next job's garbage collection finds what cannot be removed now."""
        try:
            remove(self._engine, name)
        except EngineError as error:
            complain(error)
