"""The ranks of one host: starts or awaits them, tells the coordinator what happens to them, obeys its orders.

orders in   check · say · start · stop · release · abort · kill · finish         (see `coordinator`)
events out  ready · checked · ended · deferred · launcher_ended · server_ended
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone_contract.constants import line_prefix
from herringbone_contract.failure import exit_code_of, parse_failure
from herringbone_contract.launcher import Launcher
from herringbone_entry import processes
from herringbone_entry.channel import interfaces
from herringbone_entry.channel.acceptor import Reception
from herringbone_entry.channel.frames import Message, Wire
from herringbone_entry.channel.reserved_port import ReservedPort
from herringbone_entry.host import Host
from herringbone_entry.launchers import mpirun
from herringbone_entry.launchers.data_parallel import Meeting
from herringbone_entry.launchers.mpi_daemons import Daemons
from herringbone_entry.launchers.tensorflow_cluster import NUM_SERVERS, Servers
from herringbone_entry.preparation.prepare import Prepared
from herringbone_entry.ranks import attach
from herringbone_entry.ranks.layout import Layout, Place, lay_out
from herringbone_entry.ranks.output import Output
from herringbone_entry.ranks.rank_process import RankProcess
from herringbone_entry.ranks.start_message import orders_of
from herringbone_entry.ranks.starter import RankStarter
from herringbone_entry.run_folder import RunFolder
from herringbone_entry.sidecars.sidecar import Companion
from herringbone_entry.supervisor import failure
from herringbone_entry.supervisor.event_loop import Loop
from herringbone_entry.supervisor.membership import Party

if TYPE_CHECKING:
    from herringbone_entry.sidecars.required_sidecar import Attendant, Attendants

# When a rank has failed, the others get this long between SIGTERM and SIGKILL.
ABORT_GRACE_SECONDS = 1.0
# What a rank left behind may hold its output open for this long.
DRAIN_SECONDS = 1.0
# Killed processes need a moment to go; one that the kernel cannot end is left to it after this many looks.
CLEAR_SECONDS = 0.02
CLEAR_ROUNDS = 50


class Supervisor:
    """One host's ranks.

    `party` takes events for the coordinator, and the exit code when the verdict has come and nothing of this host runs
    any more.
    """

    def __init__(
        self,
        host: Host,
        run_folder: RunFolder,
        loop: Loop,
        output: Output,
        starter: RankStarter,
        *,
        party: Party,
    ) -> None:
        self._host, self._run_folder, self._loop, self._output = host, run_folder, loop, output
        self._starter = starter
        self._party, self._tell = party, party.tell
        self._prepared: Prepared | None = None
        self._layout = Layout((), ())
        self._meeting = Meeting("", 0, 0)
        self._ports = [ReservedPort(), ReservedPort()]
        self._interface: str | None = None
        self._ranks: dict[int, RankProcess] = {}
        self._children: dict[int, RankProcess] = {}
        self._reception: Reception | None = None
        self._launcher: Companion | None = None
        self._daemons = Daemons(loop, output, line_prefix(host.name), party.tell)
        self._attendant: Attendant | Attendants | None = None
        self._holds = False
        self._stopping = False
        self._deferred: list[RankProcess] = []
        self._last_signal: signal.Signals | None = None
        self._verdict: Message | None = None
        self._clears = False

    def log(self, text: str) -> None:
        """Print a line of the supervisor's own."""
        prefix = line_prefix(self._host.name)
        self._output.write(b"".join(prefix + line.encode() + b"\n" for line in text.splitlines()))

    def ready(self, prepared: Prepared) -> None:
        """Say that this host can start; from now on, ranks of mpirun's may attach."""
        self._prepared = prepared
        if self._is_mpi or not prepared.num_processes:
            self._starter.discard_spare()
        if self._is_mpi:
            path = attach.socket_path(self._run_folder.path, self._host.name)
            self._reception = Reception(path, prepared.num_processes + 16, self._loop, self._greeted)
        self._ports += [ReservedPort() for _ in range(NUM_SERVERS.get(prepared.launcher, 0))]
        if prepared.helps:
            # Most jobs have no helper hosts.
            from herringbone_entry.sidecars.servers import serve

            self._attendant = serve(prepared, self._host, self._party, self._loop, self._output, self._tell_ready)
        else:
            self._tell_ready()

    def _tell_ready(self, server_port: int | None = None) -> None:
        assert self._prepared is not None
        port, reduce_port, *tensorflow = (port.number for port in self._ports)
        ports = {"port": port, "reduce_port": reduce_port, "server_port": server_port, "tensorflow": tensorflow}
        event = {"kind": "ready", "processes": self._prepared.num_processes, **ports}
        has_chief = self._prepared.launcher is Launcher.PARAMETER_SERVER
        self._tell({**event, "has_launcher": self._prepared.mpi is not None, "has_chief": has_chief})

    def receive(self, message: Message) -> None:
        """Obey an order of the coordinator's."""
        kind = message["kind"]
        if kind == "check":
            self._check(message["names"])
        elif kind == "say":
            self.log(message["text"])
        elif kind == "start":
            self._start(message)
        elif kind == "stop":
            self._stop()
        elif kind == "release":
            self._release()
        elif kind == "abort":
            self._abort(message["after"])
        elif kind == "kill":
            self._kill()
        elif kind == "spawn":
            self._daemons.spawn(message, self._launcher_environment())
        elif kind == "daemon_ended":
            self._daemons.ended(message)
        elif kind == "finish" and self._verdict is None:
            self._finish(message)

    def reap(self) -> None:
        """Take note of children that have ended."""
        for pid, returncode in processes.reap():
            self._daemons.reaped(pid, returncode)
            if self._attendant is not None:
                self._attendant.reaped(pid, returncode)
            if self._launcher is not None and pid == self._launcher.pid:
                self._launcher_ended(self._launcher, returncode)
            elif pid in self._children:
                self._children.pop(pid).exited(exit_code_of(returncode))
        self._sweep()

    # Starting

    def _check(self, names: list[str]) -> None:
        assert self._prepared is not None
        # Most jobs have one host and never need this.
        from herringbone_entry.supervisor.preflight import check

        check(names, self._loop, self._tell, self._host, self._prepared.environment, self._party.local_address())

    def _start(self, message: Message) -> None:
        assert self._prepared is not None
        self._layout = lay_out(message["counts"])
        for port in self._ports:
            port.release()
        self._interface = interfaces.interface_of(self._host, self._party.local_address(), interfaces.interfaces())
        meeting = message["meeting"]
        self._meeting = Meeting(**{**meeting, "tensorflow": tuple(Servers(*each) for each in meeting["tensorflow"])})
        for rank in self._layout.ranks(self._host.name):
            place = self._layout.place(rank)
            make = partial(RankProcess, place, self._loop, self._output, self._rank_changed)
            self._ranks[rank] = make() if self._is_mpi else self._start_rank(make, place)
        if self._prepared.has_parameter_servers and self._ranks:
            from herringbone_entry.sidecars.servers import serve_parameters

            here = (self._host, self._party, self._loop, self._output)
            self._attendant = serve_parameters(self._prepared, *here, (self._meeting, self._layout, self._interface))
        if self._prepared.mpi is not None:
            surroundings, folder = self._launcher_environment(), self._run_folder.path
            where = (self._host, self._layout, folder, surroundings, self._loop, self._output)
            self._launcher = mpirun.start(self._prepared, *where)

    def _start_rank(self, make: Callable[..., RankProcess], place: Place) -> RankProcess:
        assert self._prepared is not None
        rank = self._starter.start(make, self._orders(place), self._prepared.python, self._host.base_environment)
        assert rank.pid is not None
        self._children[rank.pid] = rank
        return rank

    def _launcher_environment(self) -> dict[str, str]:
        return mpirun.environment(self._host, self._layout, self._run_folder.path, self._interface)

    def _orders(self, place: Place) -> Message:
        assert self._prepared is not None
        token = self._party.token()
        return orders_of(
            place, self._prepared, self._host, meeting=self._meeting, interface=self._interface, token=token
        )

    def _greeted(self, wire: Wire, message: Message) -> None:
        """A rank of mpirun's says which one it is, or an agent that it wants a daemon."""
        if message.get("kind") == "spawn":
            self._daemons.ask(wire, message)
            return
        rank = self._ranks.get(message.get("rank", -1))
        if rank is None or rank.pid is not None:
            wire.close()
            return
        pid = int(message["pid"])
        rank.link(wire.connection, pid, self._orders(rank.place), rank.writers)
        rank.started()
        if self._last_signal is not None:
            # mpirun was still starting it when all the others were told.
            processes.send(pid, self._last_signal)
        elif self._stopping:
            self._stop_rank(rank)

    # Following

    def _rank_changed(self, rank: RankProcess) -> None:
        """Tell the coordinator, once, how a rank ended, as soon as that can be said."""
        if rank.pid is None:
            self._sweep()
            return
        attached = rank.pid not in self._children
        if attached and not rank.linked:
            # Not our child, so nobody will tell us more than the end of its link did.
            rank.gone = True
            if rank.code is None and rank.said_done:
                rank.code = 0
        if rank.report is not None or rank.gone:
            self._tell_end(rank)
        if rank.waits and not self._holds:
            rank.let_go()
        self._sweep()

    def _tell_end(self, rank: RankProcess) -> None:
        if rank.told:
            return
        rank.told = True
        rank.drain()
        if rank.code is None:
            rank.code = failure.crash_code(rank.tail.text())
        age = 0.0 if rank.ended_at is None else time.monotonic() - rank.ended_at
        found = failure.of_rank(
            self._host.name,
            rank.place.rank,
            rank.code,
            report=rank.report,
            tail=rank.tail.text(),
            folder=str(self._host.paths.code),
        )
        event = {"kind": "ended", "rank": rank.place.rank, "code": rank.code, "age": age, "failure": found.to_json()}
        self._tell(event)

    def _launcher_ended(self, launcher: Companion, returncode: int) -> None:
        assert self._prepared is not None
        self._launcher, last_words = None, launcher.last_words()
        for rank in self._ranks.values():
            if rank.pid is None:
                rank.never_came()
        self._tell(mpirun.ended(self._prepared, self._host, returncode, last_words))

    # Ending

    def _stop(self) -> None:
        """SIGTERM to every rank, SIGKILL after the grace.

        Under mpirun a rank that dies takes the others with it, also those that are saving a checkpoint. So there a
        rank that does not handle SIGTERM gets it last, and one that is done waits for the others.
        """
        self._holds = self._is_mpi
        self._stopping = True
        self._loop.later(self._host.stop_grace, self._kill)
        for rank in self._living():
            self._stop_rank(rank)

    def _stop_rank(self, rank: RankProcess) -> None:
        assert rank.pid is not None
        if self._is_mpi and not processes.handles(rank.pid, signal.SIGTERM):
            self._deferred.append(rank)
            self._tell({"kind": "deferred", "rank": rank.place.rank})
        else:
            processes.send(rank.pid, signal.SIGTERM)

    def _release(self) -> None:
        self._let_all_go()
        for rank in self._living():
            # Whether or not it handles SIGTERM by now: it has not had one yet.
            if rank in self._deferred:
                assert rank.pid is not None
                processes.send(rank.pid, signal.SIGTERM)

    def _abort(self, after: float) -> None:
        """End all ranks because one has failed. mpirun, which sees them end, says nothing that we want to hear."""
        self._let_all_go()
        self._daemons.mute()
        if self._launcher is not None:
            self._launcher.mute()
        self._loop.later(after, lambda: self._signal_ranks(signal.SIGTERM))
        self._loop.later(after + ABORT_GRACE_SECONDS, self._kill)

    def _kill(self) -> None:
        """End what still runs. mpirun gets a chance to end ranks of hosts that cannot do it themselves."""
        self._let_all_go()
        self._signal_ranks(signal.SIGKILL)
        self._signal_launcher(signal.SIGTERM)
        if self._attendant is not None:
            self._attendant.kill()
        self._loop.later(ABORT_GRACE_SECONDS, self._write_off)

    def _write_off(self) -> None:
        """Wait no longer for what SIGKILL must have ended; something else may hold a rank's link open."""
        self._signal_launcher(signal.SIGKILL)
        for rank in self._living():
            rank.write_off()

    def _let_all_go(self) -> None:
        self._holds = False
        for rank in self._ranks.values():
            rank.let_go()

    def _signal_ranks(self, number: signal.Signals) -> None:
        self._last_signal = number
        for rank in self._living():
            assert rank.pid is not None
            processes.send(rank.pid, number)

    def _signal_launcher(self, number: signal.Signals) -> None:
        if self._launcher is not None:
            self._launcher.signal(number)

    def _living(self) -> list[RankProcess]:
        return [rank for rank in self._ranks.values() if rank.pid is not None and not rank.gone]

    def _finish(self, message: Message) -> None:
        self._verdict = message
        self._let_all_go()
        if self._attendant is not None:
            self._attendant.end()
        self._loop.later(ABORT_GRACE_SECONDS, self._kill)
        self._sweep()

    def _sweep(self) -> None:
        """When the verdict is known and all ranks are gone: end what they left behind, then leave.

        A grandchild that holds a rank's output open gets DRAIN_SECONDS to write its last lines.
        """
        attended = self._attendant is not None and self._attendant.runs
        if self._verdict is None or self._living() or self._launcher is not None or attended:
            return
        if all(rank.silent for rank in self._ranks.values()):
            self._end_leftovers()
        else:
            self._loop.later(DRAIN_SECONDS, self._end_leftovers)

    def _end_leftovers(self) -> None:
        if not self._clears:
            self._clears = True
            self._clear()

    def _clear(self, rounds: int = CLEAR_ROUNDS) -> None:
        """Kill what is left until nothing is: some of it may have been started while we looked."""
        processes.kill_descendants()
        for rank in self._ranks.values():
            rank.silence()
        if processes.has_children() and rounds:
            self._loop.later(CLEAR_SECONDS, lambda: self._clear(rounds - 1))
        else:
            self._leave()

    def _leave(self) -> None:
        assert self._verdict is not None
        verdict, self._verdict = self._verdict, None
        if self._reception is not None:
            self._reception.close()
        code, text = verdict["code"], verdict["failure"]
        found = None if text is None else parse_failure(text)
        if found is None and code == 0:
            try:
                Path(self._host.paths.success).touch()
            except OSError as error:
                # What the job made is as likely to be incomplete.
                code, found = 1, failure.of_error(self._host.name, error)
        if found is not None:
            failure.write(self._host.paths, found)
            self.log(f"failed: {found.render()}")
        self._party.leave(code)

    @property
    def _is_mpi(self) -> bool:
        return self._prepared is not None and self._prepared.mpi_options is not None
