"""The supervisor of a host that is ready: starts or awaits its ranks, reports their ends, obeys the coordinator.

    orders    check · say · emit · stacks · clock · start · ask · stop · release · abort · hurry · kill · spawn ·
              daemon_ended · finish
    events    ready · checked · asked · ended · deferred · launcher_ended · server_ended · spawn · daemon_ended

After `finish` this host leaves in steps, none of which blocks the loop:

    [1] sidecars get SIGTERM, and after a grace period all processes get SIGKILL
    [2] all ranks, sidecars and mpirun are gone
    [3] all output is read, or DRAIN_SECONDS are over
    [4] `Ending` kills remaining processes, writes how the job ended, and leaves
"""

from __future__ import annotations

import contextlib
import json
import select
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from herringbone_contract.constants import HostVariable, Key, RankVariable
from herringbone_contract.errors import LaunchError
from herringbone_contract.failure import exit_code_of
from herringbone_contract.files import write_whole
from herringbone_contract.launcher import Launcher
from herringbone_contract.layout import lay_out
from herringbone_entry import processes
from herringbone_entry.channel import interfaces
from herringbone_entry.channel.rendezvous import Rendezvous
from herringbone_entry.channel.reserved_port import ReservedPort, StatusListener
from herringbone_entry.host_context import HostContext
from herringbone_entry.preparation.prepare import Prepared, find_versions
from herringbone_entry.ranks.environment import status_environment
from herringbone_entry.ranks.starter import RankStarter
from herringbone_entry.run_folder import RunFolder
from herringbone_entry.supervisor.ending import Ending
from herringbone_entry.supervisor.membership import Membership
from herringbone_entry.supervisor.rank_group import RankGroup
from herringbone_entry.supervisor.start_message import sharding_variables, start_message, thread_limits
from herringbone_entry.supervisor.stopping import HostStop

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Abort, Check, DaemonEnded, Finish, Order, Removed, Spawn, Start
    from herringbone_entry.health.host_checks import HostChecks
    from herringbone_entry.sidecars.mpirun import Mpirun
    from herringbone_entry.sidecars.observer import ObserverSidecar
    from herringbone_entry.sidecars.required_sidecar import RequiredSidecar
    from herringbone_entry.supervisor.watching.host_watch import HostWatch

# When a rank has failed, the others get this long between SIGTERM and SIGKILL.
ABORT_GRACE_SECONDS = 1.0
# mpirun sleeps several times on its way to its end.
_WAKE_SECONDS = 0.05
# A process that a rank left running may hold the rank's output open for this long.
DRAIN_SECONDS = 1.0
# The observer starts this long after the ranks, whose first line does not wait for it.
OBSERVER_SECONDS = 1.0


class RunningSupervisor:
    """Supervises one host from the moment it is ready.

    The constructor reports `ready`, or does so once a helper's server listens. Raises `LaunchError` when there is no
    folder for the sockets of mpirun's ranks.
    """

    def __init__(
        self,
        context: HostContext,
        membership: Membership,
        prepared: Prepared,
        starter: RankStarter,
        run_folder: RunFolder,
    ) -> None:
        self._context, self._membership = context, membership
        self._prepared, self._starter, self._run_folder = prepared, starter, run_folder
        self._ranks = RankGroup(context, under_mpi=prepared.under_mpi, on_change=self._leave_if_all_ended)
        # Only under mpirun: other ranks are children of ours, and inherit their connection.
        self._mpirun: Mpirun | None = None
        # The job is over only when these have ended, too.
        self._sidecars: list[RequiredSidecar] = []
        # Reserved before the coordinator hears of them, released just before the ranks listen at them.
        self._ports = [ReservedPort() for _ in range(2 + prepared.num_tensorflow_servers)]
        # The FIFO to which ranks send events; None if it could not be made, or the user wants none.
        self._fifo: int | None = None
        self._host_stop = HostStop(context, self._ranks, self._kill)
        # Takes posts of the ranks' progress; None where the system cannot have one, or the user has another.
        self._status: StatusListener | None = None
        # From about a second after the start on.
        self._observer: ObserverSidecar | None = None
        self._finish_order: Finish | None = None
        self._watch: HostWatch | None = None
        self._checks: HostChecks | None = None
        self._ending = Ending(context, membership, on_kill=self._ranks.stop_reading)
        self._handlers: dict[str, Callable[[Any], None]] = {
            "check": self._check,
            "say": lambda order: context.log(order["text"]),
            "emit": lambda order: context.send_event({"t": time.time(), **order["event"]}),
            "stacks": lambda order: self._host_watch().look(order["id"]),
            "clock": lambda order: self._host_watch().steps.answer(order),
            "start": self._start,
            "ask": self._host_stop.ask,
            "stop": self._host_stop.stop,
            "release": lambda _: self._ranks.release(),
            "removed": self._removed,
            "abort": self._abort,
            "hurry": self._hurry,
            "kill": self._kill,
            "spawn": self._spawn,
            "daemon_ended": self._daemon_ended,
            "finish": self._finish,
        }
        self._get_ready()

    @property
    def ranks(self) -> RankGroup:
        """The ranks of this host, for clients' requests."""
        return self._ranks

    def receive(self, order: Order) -> None:
        """Obey an order of the coordinator."""
        # An order of a kind that this release does not know is ignored.
        if (handler := self._handlers.get(order["kind"])) is not None:
            handler(order)

    def reap(self) -> None:
        """Collect children that have ended, and pass each one to its owner."""
        for pid, returncode in processes.reap():
            # A pid belongs to one owner, and each owner ignores pids that it does not know.
            self._ranks.reaped(pid, exit_code_of(returncode))
            for sidecar in self._sidecars:
                sidecar.reaped(pid, returncode)
            if self._observer is not None:
                self._observer.reaped(pid, returncode)
            if self._mpirun is not None and (event := self._mpirun.reaped(pid, returncode)) is not None:
                self._ranks.launcher_ended()
                self._context.report(event)
        self._leave_if_all_ended()

    # Starting

    def _get_ready(self) -> None:
        prepared = self._prepared
        if prepared.under_mpi or not prepared.num_processes:
            # mpirun starts its own processes, and a helper host has no rank: nobody will use the prewarmed one.
            self._starter.discard_prewarmed()
        if prepared.under_mpi:
            # Few jobs run under mpirun, and the others do not wait for this module.
            from herringbone_entry.sidecars.mpirun import Mpirun

            # Before `ready`: mpirun on the first host may start our ranks as soon as all hosts are ready.
            self._mpirun = Mpirun(prepared, self._context, self._run_folder.path, self._ranks.attach)
        if prepared.helps:
            # Most jobs have no helper hosts and never need this module.
            from herringbone_entry.sidecars.servers import start_helper

            self._sidecars = [start_helper(prepared, self._context, self._membership.token(), self._report_ready)]
        else:
            self._report_ready()

    def _report_ready(self, server_port: int | None = None) -> None:
        port, reduce_port, *tensorflow = (port.number for port in self._ports)
        self._context.report(
            {
                "kind": "ready",
                "processes": self._prepared.num_processes,
                "port": port,
                "reduce_port": reduce_port,
                "server_port": server_port,
                "tensorflow": tensorflow,
                "has_launcher": self._prepared.mpi is not None,
                "has_chief": self._prepared.launcher is Launcher.PARAMETER_SERVER,
            }
        )

    def _check(self, order: Check) -> None:
        if self._checks is None:
            # Most jobs have one host and never need this module.
            from herringbone_entry.health.host_checks import HostChecks

            self._checks = HostChecks(self._context, self._prepared, self._membership.local_address())
        self._checks.obey(order)

    def _host_watch(self) -> HostWatch:
        if self._watch is None:
            # Not before the first events, or a client's look: a start does not wait for this module.
            from herringbone_entry.supervisor.watching.host_watch import HostWatch

            host = self._context.host
            self._watch = HostWatch(self._context, self._ranks, host.idle_timeout, host.loss_spike_factor)
        return self._watch

    def _start(self, order: Start) -> None:
        prepared, host = self._prepared, self._context.host
        layout = lay_out(order["counts"])
        rendezvous = Rendezvous.from_message(order["meeting"])
        interface = interfaces.interface_of(host, self._membership.local_address(), interfaces.interfaces())
        for port in self._ports:
            # Between here and the rank's bind the port is free, which is why it lies outside the ephemeral range.
            port.release()
        orders = self._ranks.orders = self._orders_folder()
        variables = thread_limits(self._context, prepared, layout, order["machine_ranks"])
        variables |= self._observe(layout.world_size) | sharding_variables(self._context, prepared, layout)
        for rank in layout.ranks(host.name):
            placement = layout.placement(rank)
            message = start_message(
                placement,
                prepared,
                host,
                rendezvous=rendezvous,
                variables=variables,
                interface=interface,
                token=self._membership.token(),
            )
            message["orders"] = orders
            if self._mpirun is not None:
                self._ranks.expect(placement, message)
            else:
                self._ranks.start(placement, message, self._starter, prepared.python)
        if prepared.has_parameter_servers and self._ranks:
            from herringbone_entry.sidecars.servers import start_parameter_servers

            self._sidecars = start_parameter_servers(
                prepared, self._context, rendezvous=rendezvous, layout=layout, interface=interface
            )
        if self._mpirun is not None:
            self._mpirun.start(layout, interface)
        if layout.ranks(host.name):
            self._context.listeners.append(lambda lines: self._host_watch().take_events(lines))
            if limit := host.hang_timeout(layout.world_size):
                self._host_watch().watch(limit, is_chosen=Key.HANG_TIMEOUT in host.steering)
        self._write_versions()

    def _orders_folder(self) -> str:
        """Return the folder through which ranks get orders; "" for ranks that take none."""
        # The rank's own process only waits for a program that knows nothing of us.
        if self._prepared.program.entry == "program":
            return ""
        # A host without a folder for orders runs its job all the same.
        with contextlib.suppress(LaunchError):
            return self._run_folder.path
        return ""

    def _write_versions(self) -> None:
        """Report what the ranks run with, in a file for `describe`; the ranks start meanwhile."""
        host = self._context.host
        # A disk that is full, or a folder of another user, is no reason to fail.
        with contextlib.suppress(OSError):
            versions = json.dumps(find_versions(self._prepared.python, sys.path))
            write_whole(host.paths.versions, versions.encode(), mode=0o666)

    def _observe(self, ranks: int) -> dict[str, str]:
        """Make the FIFO for events, have the observer start soon, and return the variables that ranks need for it."""
        host = self._context.host
        if host.environ.get(HostVariable.OBSERVER) == "off":
            return {}
        self._context.loop.later(OBSERVER_SECONDS, partial(self._start_observer, time.time()))
        variables = self._listen_for_status()
        try:
            # Hosts of one machine share the folder.
            path, self._fifo = self._run_folder.make_fifo(f"events-{host.name}")
        except (OSError, LaunchError) as error:
            self._context.log(f"metrics that the script sends are lost: no FIFO can be made ({error})")
            return variables
        self._host_stop.path = self._run_folder.make_stop_file(path, ranks)
        return {**variables, RankVariable.EVENTS: path}

    def _listen_for_status(self) -> dict[str, str]:
        # Without a loopback interface, or files in memory, there are no posts.
        with contextlib.suppress(OSError):
            listener = StatusListener()
            variables = status_environment(
                self._context.host.base_environment, port=listener.port, token_path=listener.token_path
            )
            if variables:
                self._status = listener
                return variables
            listener.close()
        return {}

    def _start_observer(self, started: float) -> None:
        # The job may have ended meanwhile.
        if self._finish_order is not None:
            return
        try:
            from herringbone_entry.sidecars.observer import start_observer

            self._observer = start_observer(
                self._context,
                self._prepared.environment,
                lambda: self._ranks.pids,
                leads=0 in self._ranks.numbers,
                fifo=self._fifo,
                status=self._status,
                started=started,
            )
        except Exception as error:  # noqa: BLE001 - the package may be gone, and no job fails for those who look at it
            self._context.log(f"this host has no observer, and the job continues: {type(error).__name__}: {error}")
            if self._status is not None:
                # Nobody will answer posts that wait.
                self._status.stop_listening()

    def _spawn(self, order: Spawn) -> None:
        if self._mpirun is not None:
            self._mpirun.spawn(order)

    def _daemon_ended(self, order: DaemonEnded) -> None:
        if self._mpirun is not None:
            self._mpirun.daemon_ended(order)

    # Ending

    def _removed(self, order: Removed) -> None:
        if self._observer is not None:
            self._observer.obey(order)

    def _abort(self, order: Abort) -> None:
        """End all ranks because one has failed."""
        self._ranks.let_go()
        # mpirun and its daemons see the ranks end and complain; their complaints would hide the cause.
        if self._mpirun is not None:
            self._mpirun.mute()
        self._context.loop.later(order["after"], lambda: self._ranks.signal(signal.SIGTERM))
        # Failed peers leave ranks in collectives that never return, and Python runs no signal handler there.
        self._context.loop.later(order["after"] + ABORT_GRACE_SECONDS, self._kill)

    def _hurry(self, order: object) -> None:
        """Wake mpirun and its daemons until they have ended."""
        if self._mpirun is not None and self._mpirun.wake():
            self._context.loop.later(_WAKE_SECONDS, partial(self._hurry, order))

    def _kill(self, _order: object = None) -> None:
        """Kill all processes that still run."""
        self._ranks.let_go()
        self._host_stop.note_kill()
        self._ranks.signal(signal.SIGKILL)
        # SIGTERM has mpirun end ranks of hosts that cannot do so themselves.
        self._signal_mpirun(signal.SIGTERM)
        for sidecar in self._sidecars:
            sidecar.kill()
        # SIGKILL takes effect at once unless the process waits in the kernel, for example for a dead network disk.
        self._context.loop.later(ABORT_GRACE_SECONDS, self._write_off)

    def _write_off(self) -> None:
        """Wait no longer for processes that SIGKILL must have ended."""
        self._signal_mpirun(signal.SIGKILL)
        self._ranks.write_off()

    def _signal_mpirun(self, number: signal.Signals) -> None:
        if self._mpirun is not None:
            self._mpirun.signal(number)

    def _finish(self, order: Finish) -> None:
        if self._finish_order is not None:
            return
        # The first order counts: the coordinator repeats it for hosts that join late.
        self._finish_order = order
        self._host_stop.end()
        self._ranks.let_go()
        for sidecar in self._sidecars:  # [1]
            sidecar.end()
        if self._observer is not None:
            self._observer.end()
        self._context.loop.later(ABORT_GRACE_SECONDS, self._kill)
        self._leave_if_all_ended()

    def _leave_if_all_ended(self) -> None:
        """Leave when the job is over and everything that this host started has ended."""
        if self._finish_order is None or self._ranks.living:
            return
        # [2]
        if self._mpirun is not None and self._mpirun.runs:
            return
        if any(sidecar.runs for sidecar in self._sidecars) or (self._observer is not None and self._observer.runs):
            return
        # [3] A grandchild that holds a rank's output open may write its last lines.
        if self._ranks.silent:
            self._end()
        else:
            self._context.loop.later(DRAIN_SECONDS, self._end)

    def _end(self) -> None:
        assert self._finish_order is not None  # [4]
        if self._mpirun is not None:
            # No rank may attach any more: remaining processes are about to be killed.
            self._mpirun.close()
        if self._fifo is not None and select.select([self._fifo], [], [], 0)[0]:
            # A job of under a second has no observer, and ranks may have sent more since it ended.
            with contextlib.suppress(Exception):
                from herringbone_entry.sidecars.observer import flush_fifo

                flush_fifo(self._context, self._fifo)
        self._host_stop.report()
        self._ending.begin(self._finish_order)
