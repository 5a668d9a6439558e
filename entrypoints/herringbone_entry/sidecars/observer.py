"""The supervisor's end of the observer: starts it, prints its events, and ends it with the host.

Loaded about a second after the ranks have started, so that no job starts later for it, and short jobs do without.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from herringbone_contract.events.format import EVENT_MARK, encode, parse
from herringbone_contract.masking import printable
from herringbone_entry import processes
from herringbone_entry.channel.reserved_port import StatusListener
from herringbone_entry.host_context import HostContext
from herringbone_entry.observer.settings import Settings
from herringbone_entry.ranks.lines import LineStream, Tail
from herringbone_entry.ranks.pipe import Pipe
from herringbone_entry.sidecars.sidecar import LinesOfSidecar

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Removed

# As in `plain`: no folder of the user's comes first on sys.path.
_START = "import sys; sys.path = [*filter(None, sys.path)]; from herringbone_entry.observer.main import main; main()"
# After the end of its orders the observer gets this long for its last flush.
END_SECONDS = 0.3
_MAX_STARTS = 2
# The last checkpoint is verified, and those that it follows are removed.
KEEP_SECONDS = 30.0
_LOOK_SECONDS = 5.0
_OUTPUT_SECONDS_ELSEWHERE, _SAMPLE_SECONDS_ELSEWHERE = 10.0, 60.0


class EventLines(LineStream):
    """Lines of the observer, marked as events; `context.listeners` get them first."""

    def __init__(self, context: HostContext) -> None:
        super().__init__(context.prefix + EVENT_MARK, Tail())
        self._context = context

    def _whole(self, lines: bytes) -> bytes:
        for listener in list(self._context.listeners):
            try:
                listener(lines)
            except Exception as error:  # noqa: BLE001 - what ranks send reaches listeners, and must not end the host
                self._context.listeners.remove(listener)
                self._context.log(f"events are not listened to any more: {type(error).__name__}: {error}")
        return super()._whole(lines)

    def close(self) -> bytes:
        # An observer that was killed may leave half a line, which is no event.
        return b""


class ObserverSidecar:
    """Runs the observer next to the ranks; a second time if it dies, and no third.

    `pids` returns the pids of the ranks, by rank. Descriptors in `inherit`, such as that of the FIFO, keep their number
    in the observer, as do those of `status`.
    """

    def __init__(
        self,
        context: HostContext,
        settings: Settings,
        pids: Callable[[], Mapping[int, int]],
        inherit: Sequence[int] = (),
        status: StatusListener | None = None,
    ) -> None:
        self._context, self._settings, self._pids, self._inherit = context, settings, pids, inherit
        self._status = status
        self._starts = 0
        self._pid: int | None = None
        self._orders: int | None = None
        self._pipes: list[Pipe] = []
        self._start()
        context.loop.later(_LOOK_SECONDS, self._look_at_ranks)
        if settings.leads:
            context.listeners.append(self._pass_on_removals)
        if settings.drain is not None:
            context.listeners.append(self._pass_on_notice)
        context.watched.append(lambda: {} if self._pid is None else {"the observer": self._pid})

    @property
    def runs(self) -> bool:
        """True if its process has not been reaped yet."""
        return self._pid is not None

    def _look_at_ranks(self) -> None:
        """Send the pids of the ranks if they have changed: mpirun may start some of them late."""
        if self._orders is None:
            return
        ranks = self._pids()
        if ranks != self._settings.ranks:
            self._settings = self._settings._replace(ranks=ranks)
            self._send(json.dumps({"ranks": ranks}).encode() + b"\n")
        self._context.loop.later(_LOOK_SECONDS, self._look_at_ranks)

    def end(self) -> None:
        """Have it flush and end; kill it if it takes longer than END_SECONDS. A second call is void."""
        if self._orders is None:
            return
        os.close(self._orders)
        self._orders = None
        self._context.loop.later(END_SECONDS if self._settings.keep is None else KEEP_SECONDS, self.kill)

    def obey(self, order: Removed) -> None:
        """Have it remove a checkpoint that another host has removed."""
        if self._settings.keep is not None and not self._settings.leads:
            self._send(json.dumps({"unit": order["unit"], "after": order["after"]}).encode() + b"\n")

    def kill(self) -> None:
        """End it by force."""
        if self._pid is not None:
            processes.send(self._pid, signal.SIGKILL)

    def reaped(self, pid: int, returncode: int) -> None:
        """Note that a child of the supervisor has ended; another child is ignored."""
        if pid != self._pid:
            return
        self._pid = None
        for pipe in self._pipes:
            pipe.finish()
        if self._orders is None:
            return
        # Nobody has asked it to end.
        os.close(self._orders)
        self._orders = None
        text = f"the observer of this host ended with {returncode}; the job continues"
        if self._starts < _MAX_STARTS:
            self._context.log(f"{text}, and the observer starts again")
            self._start()
        else:
            self._context.log(f"{text} without samples and metrics of its script")

    def _pass_on_removals(self, lines: bytes) -> None:
        for line in lines.splitlines() if b'"removed"' in lines else ():
            event = parse(line)
            if event is not None and event["kind"] == "removed":
                why = f"checkpoint {event['path']} is removed, because {event['successor']} is whole"
                self._context.log(printable(why))
                self._context.report({"kind": "removed", "unit": event["unit"], "after": event["after"]})

    def _pass_on_notice(self, lines: bytes) -> None:
        for line in lines.splitlines() if b'"drain"' in lines else ():
            event = parse(line)
            if event is not None and event["kind"] == "drain":
                why = printable(str(event.get("why")))
                self._context.log(f"the platform takes this host away: {why}")
                self._context.report({"kind": "stop", "why": why, "leaving": True})

    def _start(self) -> None:
        self._starts += 1
        loop, output = self._context.loop, self._context.output
        self._pipes = [
            Pipe(loop, output, EventLines(self._context), _ignore_end),
            Pipe(loop, output, LinesOfSidecar(self._context.prefix, Tail()), _ignore_end),
        ]
        stdout, stderr = self._pipes
        orders, self._orders = os.pipe()
        os.set_blocking(self._orders, False)
        try:
            self._pid = processes.spawn(
                [sys.executable, "-c", _START, str(orders)],
                self._context.host.base_environment,
                stdout=stdout.writer,
                stderr=stderr.writer,
                inherit=[orders, *self._inherit, *self._status_descriptors],
            )
        except OSError as error:
            self._context.log(f"the observer of this host cannot be started: {error}; the job continues without it")
            os.close(self._orders)
            self._orders = None
            self._starts = _MAX_STARTS
        finally:
            os.close(orders)
            for pipe in self._pipes:
                pipe.close_writer()
        if self._starts == _MAX_STARTS and self._status is not None:
            # No other observer will answer posts that wait, and each would cost its rank seconds.
            self._status.stop_listening()
        self._send(self._settings.encode())

    @property
    def _status_descriptors(self) -> list[int]:
        return [] if self._status is None else [self._status.descriptor, self._status.token]

    def _send(self, line: bytes) -> None:
        # The pipe is empty, or the observer hangs and gets nothing more.
        if self._orders is not None:
            with contextlib.suppress(OSError):
                os.write(self._orders, line)


def start_observer(
    context: HostContext,
    environment: Mapping[str, str],
    pids: Callable[[], Mapping[int, int]],
    *,
    leads: bool,
    fifo: int | None,
    status: StatusListener | None,
    started: float,
) -> ObserverSidecar:
    """Start the observer of a host; `environment` are the variables of its ranks, `pids` returns their pids.

    The host that `leads` is that of the first rank, from which metrics come in most scripts.
    `started` is the time at which the ranks were started, in seconds since 1970.
    """
    host = context.host
    # Controllers of ours take events out of the log. Elsewhere, on SageMaker say, each is a line of a log that costs.
    has_controller = host.lifeline is not None
    settings = Settings(
        host=host.name,
        supervisor=os.getpid(),
        events=fifo,
        ranks=pids(),
        num_cpus=int(environment["SM_NUM_CPUS"]),
        checkpoints=str(host.checkpoints),
        output_data=str(host.paths.output_data),
        tensorboard=str(host.paths.tensorboard),
        started=started,
        status_listener=None if status is None else status.descriptor,
        status_token=None if status is None else status.token,
        job=host.job_name,
        keep=host.keep_checkpoints,
        leads=leads and host.keep_checkpoints is not None,
        drain=host.drain_notice,
        output_interval=1.0 if has_controller else _OUTPUT_SECONDS_ELSEWHERE,
        sample_interval=1.0 if has_controller else _SAMPLE_SECONDS_ELSEWHERE,
    )
    return ObserverSidecar(context, settings, pids, [] if fifo is None else [fifo], status)


def flush_fifo(context: HostContext, descriptor: int) -> None:
    """Print the events that the observer has left in the FIFO, or all of them if there was no observer."""
    import time

    from herringbone_contract.events.format import Point, batches
    from herringbone_entry.observer.fifo import Fifo

    items = Fifo(descriptor).poll(time.time())
    events = [item for item in items if not isinstance(item, Point)]
    for event in [*events, *batches(item for item in items if isinstance(item, Point))]:
        with contextlib.suppress(ValueError):
            context.output.write(context.prefix + EVENT_MARK + encode(event))


def _ignore_end() -> None:
    """Do nothing: the end of the process counts, and not the end of its output."""
