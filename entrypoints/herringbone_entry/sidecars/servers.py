"""Start the servers that ranks need: a helper's server, which sums gradients, or parameter servers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping

from herringbone_contract.constants import ReduceVariable
from herringbone_contract.launcher import Launcher
from herringbone_contract.layout import Layout
from herringbone_entry.channel.rendezvous import Rendezvous
from herringbone_entry.host_context import HostContext
from herringbone_entry.launchers import data_parallel, mxnet_cluster, tensorflow_cluster
from herringbone_entry.preparation.prepare import Prepared
from herringbone_entry.sidecars.required_sidecar import RequiredSidecar
from herringbone_entry.sidecars.sidecar import Sidecar

_LINE_BYTES = 65_536
_HELPER = "the server of this helper host, which sums gradients,"
_PARAMETERS = "the parameter server of this host"
_SCHEDULER = "the scheduler of the parameter servers"


class HelperServer(RequiredSidecar):
    """Starts `argv` in `environment` and gives it the job's token over a descriptor.

    `on_ready` is called once with the port at which it listens.
    """

    def __init__(
        self,
        argv: list[str],
        environment: Mapping[str, str],
        token: str,
        context: HostContext,
        on_ready: Callable[[int], None],
    ) -> None:
        self._loop, self._on_ready = context.loop, on_ready
        # The line may arrive in parts.
        self._line = b""
        # A pipe and not a port: nobody else can write to it.
        self._reader, ready = os.pipe()
        os.set_blocking(self._reader, False)
        secret = filled_pipe(token)
        try:
            variables = {ReduceVariable.READY: str(ready), ReduceVariable.TOKEN_FILE: f"/dev/fd/{secret}"}
            sidecar = Sidecar(argv, {**environment, **variables}, context, inherit=[ready, secret])
        finally:
            # The server has its own copies. With ours open, its death would never end the pipe.
            os.close(ready)
            os.close(secret)
        super().__init__(sidecar, _HELPER, context)
        self._loop.read(self._reader, self._read_port)

    def _read_port(self) -> None:
        """Read the server's one line; its death or silence is noticed elsewhere (`reaped`, the join timeout)."""
        chunk = os.read(self._reader, _LINE_BYTES)
        self._line += chunk
        if chunk and b"\n" not in chunk:
            return
        self._loop.forget(self._reader)
        # Exactly one line is expected, so the pipe has served its purpose.
        os.close(self._reader)
        if not chunk:
            return
        try:
            port = int(json.loads(self._line)["port"])
        except (ValueError, TypeError, KeyError):
            line = self._line[:80].decode("utf-8", "replace")
            self.fail(1, f"the server of this helper host said {line!r} where it was to name its port")
            return
        self._on_ready(port)


def start_helper(
    prepared: Prepared, context: HostContext, token: str, on_ready: Callable[[int], None]
) -> RequiredSidecar:
    """Start the server of this helper host, in the supervisor's own Python: it needs no package of the user's."""
    host = context.host
    rails = prepared.environment.get(ReduceVariable.RAILS)
    environment = data_parallel.server_environment(
        host.base_environment, rails, host=host.name, on_one_machine=host.on_one_machine
    )
    return HelperServer(data_parallel.server_argv(sys.executable), environment, token, context, on_ready)


def start_parameter_servers(
    prepared: Prepared, context: HostContext, *, rendezvous: Rendezvous, layout: Layout, interface: str | None
) -> list[RequiredSidecar]:
    """Start the parameter server next to this host's rank, in the rank's Python, which has the framework.

    MXNet's servers have a scheduler too, next to rank 0. `interface` leads from this host to the others.
    """
    host = context.host
    rank = layout.ranks(host.name)[0]

    def start(name: str, argv: list[str], variables: Mapping[str, str], *, may_leave: bool) -> RequiredSidecar:
        # Hide the GPUs, which are the rank's: TensorFlow takes all of a GPU's memory, in each process that sees it.
        environment = {**host.base_environment, **prepared.environment, **variables, "CUDA_VISIBLE_DEVICES": "-1"}
        return RequiredSidecar(Sidecar(argv, environment, context), name, context, may_leave=may_leave)

    if prepared.launcher is Launcher.PARAMETER_SERVER:
        config = {tensorflow_cluster.VARIABLE: tensorflow_cluster.server_config(rendezvous.tensorflow, rank)}
        return [start(_PARAMETERS, tensorflow_cluster.server_argv(prepared.python), config, may_leave=False)]
    # One server on each host with a rank, as in SageMaker's containers.
    roles: list[tuple[mxnet_cluster.Role, str]] = [("server", _PARAMETERS)]
    if rank == 0:
        roles.append(("scheduler", _SCHEDULER))
    sidecars = []
    for role, name in roles:
        variables = mxnet_cluster.environment(
            role, rendezvous, hosts=len(layout.hosts), on_one_machine=host.on_one_machine, interface=interface
        )
        sidecars.append(start(name, mxnet_cluster.server_argv(prepared.python), variables, may_leave=True))
    return sidecars


def filled_pipe(text: str) -> int:
    """Return the reading end of a pipe that holds a short text and then ends."""
    reader, writer = os.pipe()
    # The text fits into the pipe's buffer, so this write cannot block.
    os.write(writer, text.encode())
    os.close(writer)
    return reader
