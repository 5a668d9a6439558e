"""The ranks of one host: reports their ends and passes signals on to them.

All methods run in the event loop's thread. A rank is in one of these states:

    expected --(started here, or mpirun's rank attaches)--> living --(reaped, or its link closed)--> gone
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from herringbone_contract.layout import RankPlacement
from herringbone_entry import processes
from herringbone_entry.channel.frames import Message, Wire
from herringbone_entry.host_context import HostContext
from herringbone_entry.preparation import devices
from herringbone_entry.ranks.rank_process import RankProcess
from herringbone_entry.ranks.starter import RankStarter

if TYPE_CHECKING:
    from herringbone_contract.failure import Failure

_KILLED_CODE = 128 + signal.SIGKILL
# Torch's words for a worker of its data loader that somebody killed.
# As torch's data loader, subprocess, multiprocessing, torch and joblib say that a child of the rank was killed.
KILLED_CHILD = re.compile(
    r"killed by signal: Killed|SIGKILL|signal 9\b|(?:status|code) (?:-9|137)\b|terminated abruptly", re.IGNORECASE
)


class RankGroup:
    """Follows the ranks of one host; `on_change` is called whenever one of them changed.

    `under_mpi` means that mpirun starts the ranks, which then attach.
    """

    def __init__(self, context: HostContext, *, under_mpi: bool, on_change: Callable[[], None]) -> None:
        self._context, self._under_mpi, self._on_change = context, under_mpi, on_change
        # By rank; filled by the start order and never emptied.
        self._ranks: dict[int, RankProcess] = {}
        # Our own children by pid. A rank of mpirun's is a child of mpirun or of its daemon.
        self._children: dict[int, RankProcess] = {}
        # For ranks under mpirun, until they attach.
        self._start_messages: dict[int, Message] = {}
        # The folder through which the ranks get orders (`channel.attach`); "" for none.
        self.orders = ""
        # Ranks that get SIGTERM after the others, because they do not handle it.
        self._deferred: list[RankProcess] = []
        # A rank that attaches after a stop must still get its SIGTERM.
        self._stopping = False
        # Says whether a rank has heard that it is to stop; set when the ranks are asked.
        self.has_obeyed: Callable[[], bool] = lambda: False
        # While true, a rank that reports its end waits for leave to exit.
        self._holds = False
        # A rank that attaches after an abort must get the same signal as the others.
        self._last_signal: signal.Signals | None = None
        # The kernel counts the processes that it killed for memory, also those of earlier jobs in our control group.
        self._oom_kills = devices.oom_kills()
        context.watched.append(lambda: {f"rank {rank}": pid for rank, pid in self.pids.items()})

    @property
    def living(self) -> list[RankProcess]:
        """The ranks whose processes run."""
        return [rank for rank in self._ranks.values() if rank.pid is not None and not rank.gone]

    @property
    def pids(self) -> dict[int, int]:
        """The pid of each rank that runs, by rank."""
        return {rank.placement.rank: rank.pid for rank in self.living if rank.pid is not None}

    @property
    def silent(self) -> bool:
        """True if everything that the ranks will ever print has been read."""
        return all(rank.silent for rank in self._ranks.values())

    @property
    def numbers(self) -> list[int]:
        """The ranks of this host, also those that have ended."""
        return list(self._ranks)

    @property
    def moved_at(self) -> float:
        """The last time at which a rank printed or ended, in monotonic seconds; 0.0 before it."""
        return max((rank.moved_at for rank in self._ranks.values()), default=0.0)

    def __len__(self) -> int:
        return len(self._ranks)

    def start(self, placement: RankPlacement, message: Message, starter: RankStarter, python: str) -> None:
        """Start a rank as a child of this process."""

        def make(pipes: tuple[tuple[int, int] | None, ...] = (None, None)) -> RankProcess:
            return self._make(placement, pipes)

        rank = starter.start(make, message, python, self._context.host.base_environment)
        assert rank.pid is not None
        self._ranks[placement.rank] = self._children[rank.pid] = rank

    def expect(self, placement: RankPlacement, message: Message) -> None:
        """Expect a rank that mpirun starts."""
        self._ranks[placement.rank] = self._make(placement)
        self._start_messages[placement.rank] = message

    def attach(self, wire: Wire, hello: Message) -> None:
        """Take a rank that mpirun has started; close the wire of any other process."""
        rank = self._ranks.get(hello.get("rank", -1))
        # A rank of another host, or a second process with the same number, for example a child with mpirun's
        # variables.
        if rank is None or rank.pid is not None:
            wire.close()
            return
        pid = int(hello["pid"])
        rank.link(wire.connection, pid, self._start_messages.pop(rank.placement.rank), rank.writers)
        rank.started()
        # mpirun may still start ranks while the others are stopped or killed.
        if self._last_signal is not None:
            processes.send(pid, self._last_signal)
        elif self._stopping:
            self._stop_rank(rank)

    def reaped(self, pid: int, code: int) -> None:
        """Note that a child of this process has ended; one that is no rank is ignored."""
        if pid in self._children:
            self._children.pop(pid).exited(code)

    def launcher_ended(self) -> None:
        """Note that mpirun has ended: ranks that have not attached never will."""
        for rank in self._ranks.values():
            if rank.pid is None:
                rank.never_came()

    def stop(self, call: int) -> None:
        """Send SIGTERM to every rank, or leave them alone where they stop at a `call` of theirs.

        Under mpirun a rank that dies takes the others along, also ranks that are saving a checkpoint. So a rank under
        mpirun that does not handle SIGTERM gets it last, and one that is done waits for the others.
        """
        self._holds = self._under_mpi
        if call:
            return
        self._stopping = True
        for rank in self.living:
            self._stop_rank(rank)

    def release(self) -> None:
        """Let waiting ranks exit, and send SIGTERM to the deferred ones."""
        self.let_go()
        # Others have had their SIGTERM; a second one could interrupt a handler that saves.
        for rank in self.living:
            # Deferred ranks have had no SIGTERM yet, even if they handle it by now.
            if rank in self._deferred:
                _signal(rank, signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """Signal all living ranks, and those that attach later."""
        self._last_signal = number
        for rank in self.living:
            _signal(rank, number)

    def let_go(self) -> None:
        """Let ranks that have reported their end exit, now and from now on."""
        self._holds = False
        for rank in self._ranks.values():
            rank.let_go()

    def write_off(self) -> None:
        """Count living ranks as gone: SIGKILL has ended them, but another process may hold a rank's link open."""
        for rank in self.living:
            rank.write_off()

    def stop_reading(self) -> None:
        """Wait no longer for the ends of the ranks' outputs."""
        for rank in self._ranks.values():
            rank.stop_reading()

    def _make(self, placement: RankPlacement, pipes: tuple[tuple[int, int] | None, ...] = (None, None)) -> RankProcess:
        return RankProcess(placement, self._context.loop, self._context.output, self._changed, pipes)

    def _stop_rank(self, rank: RankProcess) -> None:
        assert rank.pid is not None
        if self._under_mpi and not processes.handles(rank.pid, signal.SIGTERM):
            self._deferred.append(rank)
            self._context.report({"kind": "deferred", "rank": rank.placement.rank})
        else:
            _signal(rank, signal.SIGTERM)

    def _changed(self, rank: RankProcess) -> None:
        """Report how a rank ended, once, as soon as that is known."""
        if rank.pid is not None:
            if rank.pid not in self._children and not rank.linked:
                # The rank is not our child, so nothing will tell more than the end of its link did.
                rank.gone = True
                if rank.code is None and rank.reported_done:
                    rank.code = 0
            # The report alone is enough: a rank with a report exits, and the coordinator need not wait for that.
            if rank.report is not None or rank.gone:
                self._report_end(rank)
            if rank.waits and not self._holds:
                rank.let_go()
        self._on_change()

    def _report_end(self, rank: RankProcess) -> None:
        if rank.end_reported:
            return
        rank.end_reported = True
        for name in ("stacks", "wake"):
            # The rank made them: its file of stacks, and the FIFO that announces orders.
            with contextlib.suppress(OSError):
                os.unlink(f"{self.orders}/{name}-{rank.pid}")  # noqa: PTH108 - as fast as can be: the user waits
        # The last lines belong into the failure record, and they may still be in the pipe.
        rank.drain()
        record = None if rank.code == 0 else self._failure(rank)
        if rank.report is not None and rank.report.get("record"):
            flight_record = rank.report["record"]
            self._context.report({"kind": "record", "rank": rank.placement.rank, "record": flight_record})
        # An age and not a time: the clocks of two machines have nothing in common.
        age = 0.0 if rank.ended_at is None else time.monotonic() - rank.ended_at
        self._context.report(
            {
                "kind": "ended",
                "rank": rank.placement.rank,
                "code": rank.code,
                "seen": rank.seen_code,
                "reaped": rank.reaped,
                "over": rank.reported_over,
                "obeyed": self.has_obeyed(),
                "age": age,
                "failure": record,
            }
        )

    def _failure(self, rank: RankProcess) -> str:
        """Return the failure of a rank as JSON; learn its exit code from its log if nothing else tells it."""
        from herringbone_contract.failure_text import with_words
        from herringbone_entry.supervisor import failure

        if rank.code is None:
            rank.code = failure.crash_code(rank.tail.text())
        host = self._context.host
        record = failure.of_rank(
            host.name,
            rank.placement.rank,
            rank.code,
            report=rank.report,
            tail=rank.tail.text(),
            folder=str(host.paths.code),
        )
        record = self._with_memory(
            rank, failure.with_full_disk(record, failure.free_bytes(host.paths), failure.file_limit())
        )
        return with_words(record, failure.own_words(host.paths)).to_json()

    def _with_memory(self, rank: RankProcess, record: Failure) -> Failure:
        """Say so if the kernel killed the rank, or a child of it, for want of memory."""
        child = rank.code != _KILLED_CODE and KILLED_CHILD.search(record.message) is not None
        if self._oom_kills is None or not (child or (rank.code or rank.seen_code) in (None, _KILLED_CODE)):
            return record
        kills = devices.oom_kills() or 0
        if kills <= self._oom_kills:
            return record
        # The next rank that is killed may be killed by us.
        self._oom_kills = kills
        from herringbone_entry.health.memory import out_of_memory

        reason = out_of_memory()
        if child:
            return record._replace(message=f"{record.message} ({reason})")
        rank.code = _KILLED_CODE
        return record._replace(exit_code=_KILLED_CODE, message=reason)


def _signal(rank: RankProcess, number: signal.Signals) -> None:
    assert rank.pid is not None
    processes.send(rank.pid, number)
    # A paused rank takes no signal before it continues, and could not save. To a running one this is nothing.
    processes.send(rank.pid, signal.SIGCONT)
