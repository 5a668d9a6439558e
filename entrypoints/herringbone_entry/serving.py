"""The server of a helper host, from its start to its end: what it says, and what its death means to the job."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping

from herringbone_entry.companion import Companion
from herringbone_entry.host import Host
from herringbone_entry.launchers import data_parallel
from herringbone_entry.loop import Loop
from herringbone_entry.output import Output
from herringbone_entry.party import Party
from herringbone_entry.prepare import Prepared
from herringbone_entry.wire import Message
from herringbone_spec.contract import ReduceVariable, line_prefix
from herringbone_spec.failure import Failure, exit_code_of

_LINE_BYTES = 65_536


class Serving:
    """Starts `argv` in `environment` and gives it the job's token over a descriptor.

    `on_ready` is called once with the port it listens at. `tell` gets an event when it ends, unless `end` or `kill`
    came first. Its end is seen by who reaps children: `reaped`.
    """

    def __init__(
        self,
        argv: list[str],
        environment: Mapping[str, str],
        token: str,
        loop: Loop,
        output: Output,
        host: str,
        *,
        on_ready: Callable[[int], None],
        tell: Callable[[Message], None],
    ) -> None:
        self._loop, self._host, self._on_ready, self._tell = loop, host, on_ready, tell
        self._line = b""
        self._ending = False
        self._reader, ready = os.pipe()
        os.set_blocking(self._reader, False)
        secret = filled_pipe(token)
        try:
            variables = {ReduceVariable.READY: str(ready), ReduceVariable.TOKEN_FILE: f"/dev/fd/{secret}"}
            started = Companion(
                argv, {**environment, **variables}, loop, output, line_prefix(host), inherit=[ready, secret]
            )
            self._server: Companion | None = started
        finally:
            os.close(ready)
            os.close(secret)
        loop.read(self._reader, self._hear)

    @property
    def runs(self) -> bool:
        return self._server is not None

    def end(self) -> None:
        """The job is over: let it go."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def reaped(self, pid: int, returncode: int) -> None:
        """A child of this process has ended."""
        if self._server is None or pid != self._server.pid:
            return
        last_words, self._server = self._server.last_words(), None
        if not self._ending:
            message = "the server of this helper host, which sums gradients, ended before the ranks did"
            self._fail(exit_code_of(returncode), message, last_words)

    def _signal(self, number: signal.Signals) -> None:
        self._ending = True
        if self._server is not None:
            self._server.signal(number)

    def _hear(self) -> None:
        """Read the one line that it says; its silence, or its death, is told by other means."""
        chunk = os.read(self._reader, _LINE_BYTES)
        self._line += chunk
        if chunk and b"\n" not in chunk:
            return
        self._loop.forget(self._reader)
        os.close(self._reader)
        if not chunk:
            return
        try:
            port = int(json.loads(self._line)["port"])
        except (ValueError, TypeError, KeyError):
            said = self._line[:80].decode("utf-8", "replace")
            self._fail(1, f"the server of this helper host said {said!r} where it was to name its port", ())
            return
        self._on_ready(port)

    def _fail(self, code: int, message: str, last_words: tuple[str, ...]) -> None:
        found = Failure(self._host, None, code, "", message, (), last_words)
        self._tell({"kind": "server_ended", "code": code, "failure": found.to_json()})


def serve(
    prepared: Prepared, host: Host, party: Party, loop: Loop, output: Output, on_ready: Callable[[int], None]
) -> Serving:
    """Start the server of this host, in the supervisor's own Python: it needs nothing of the user's."""
    rails = prepared.environment.get(ReduceVariable.RAILS)
    environment = data_parallel.server_environment(
        host.base_environment, rails, host=host.name, on_one_machine=host.on_one_machine
    )
    argv, token = data_parallel.server_argv(sys.executable), party.token()
    return Serving(argv, environment, token, loop, output, host.name, on_ready=on_ready, tell=party.tell)


def filled_pipe(text: str) -> int:
    """Return the reading end of a pipe that gives a short text and then ends."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    return reader
