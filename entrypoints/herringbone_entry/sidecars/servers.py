"""The servers beside or in place of ranks: a helper host's, which sums gradients, and parameter servers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping

from herringbone_contract.constants import ReduceVariable, line_prefix
from herringbone_contract.launcher import Launcher
from herringbone_entry.channel.frames import Message
from herringbone_entry.host import Host
from herringbone_entry.launchers import data_parallel, mxnet_cluster, tensorflow_cluster
from herringbone_entry.launchers.data_parallel import Meeting
from herringbone_entry.preparation.prepare import Prepared
from herringbone_entry.ranks.layout import Layout
from herringbone_entry.ranks.output import Output
from herringbone_entry.sidecars.required_sidecar import Attendant, Attendants
from herringbone_entry.sidecars.sidecar import Companion
from herringbone_entry.supervisor.event_loop import Loop
from herringbone_entry.supervisor.membership import Party

_LINE_BYTES = 65_536
_HELPER = "the server of this helper host, which sums gradients,"
_PARAMETERS = "the parameter server of this host"
_SCHEDULER = "the scheduler of the parameter servers"


class Helper(Attendant):
    """Starts `argv` in `environment` and gives it the job's token over a descriptor.

    `on_ready` is called once with the port it listens at.
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
        self._loop, self._on_ready = loop, on_ready
        self._line = b""
        self._reader, ready = os.pipe()
        os.set_blocking(self._reader, False)
        secret = filled_pipe(token)
        try:
            variables = {ReduceVariable.READY: str(ready), ReduceVariable.TOKEN_FILE: f"/dev/fd/{secret}"}
            companion = Companion(
                argv, {**environment, **variables}, loop, output, line_prefix(host), inherit=[ready, secret]
            )
        finally:
            os.close(ready)
            os.close(secret)
        super().__init__(companion, _HELPER, host, tell)
        loop.read(self._reader, self._hear)

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
            self.fail(1, f"the server of this helper host said {said!r} where it was to name its port")
            return
        self._on_ready(port)


def serve(
    prepared: Prepared, host: Host, party: Party, loop: Loop, output: Output, on_ready: Callable[[int], None]
) -> Attendant:
    """Start the server of this helper host, in the supervisor's own Python: it needs nothing of the user's."""
    rails = prepared.environment.get(ReduceVariable.RAILS)
    environment = data_parallel.server_environment(
        host.base_environment, rails, host=host.name, on_one_machine=host.on_one_machine
    )
    argv, token = data_parallel.server_argv(sys.executable), party.token()
    return Helper(argv, environment, token, loop, output, host.name, on_ready=on_ready, tell=party.tell)


def serve_parameters(
    prepared: Prepared,
    host: Host,
    party: Party,
    loop: Loop,
    output: Output,
    where: tuple[Meeting, Layout, str | None],
) -> Attendants:
    """Start the parameter server beside this host's rank, in the rank's Python: that is where the framework is.

    MXNet's have a scheduler too, beside rank 0. `where` says where the job's ranks meet, which hosts they are on, and
    which interface of this host leads to the others.
    """
    meeting, layout, interface = where
    rank = layout.ranks(host.name)[0]

    def start(what: str, argv: list[str], values: Mapping[str, str], *, leaves: bool) -> Attendant:
        # The GPUs are the rank's: TensorFlow would take all of their memory twice.
        environment = {**host.base_environment, **prepared.environment, **values, "CUDA_VISIBLE_DEVICES": "-1"}
        companion = Companion(argv, environment, loop, output, line_prefix(host.name))
        return Attendant(companion, what, host.name, party.tell, leaves=leaves)

    if prepared.launcher is Launcher.PARAMETER_SERVER:
        config = {tensorflow_cluster.VARIABLE: tensorflow_cluster.server_config(meeting.tensorflow, rank)}
        return Attendants(start(_PARAMETERS, tensorflow_cluster.server_argv(prepared.python), config, leaves=False))
    roles: list[tuple[mxnet_cluster.Role, str]] = [("server", _PARAMETERS)]
    if rank == 0:
        roles.append(("scheduler", _SCHEDULER))
    argv, attendants = mxnet_cluster.server_argv(prepared.python), []
    for role, what in roles:
        values = mxnet_cluster.environment(
            role, meeting, hosts=len(layout.hosts), on_one_machine=host.on_one_machine, interface=interface
        )
        attendants.append(start(what, argv, values, leaves=True))
    return Attendants(*attendants)


def filled_pipe(text: str) -> int:
    """Return the reading end of a pipe that gives a short text and then ends."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    return reader
