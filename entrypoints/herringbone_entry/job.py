"""One host's part of a job, from reading its files to the exit code: joins the rooms together.

Users wait for the first line of their script while this module is imported. So modules that most jobs do not need are
imported where they are used, and `dataclasses` is not used: it imports `inspect` and compiles each class again (18 ms
of 80).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import HerringboneError
from herringbone_contract.failure import STOPPED_CODE
from herringbone_entry import processes
from herringbone_entry.event_loop import Loop
from herringbone_entry.host import Host, base_paths, read_host, take_key, take_remote_key
from herringbone_entry.host_context import HostContext
from herringbone_entry.preparation.prepare import prepare
from herringbone_entry.private import NeverStarted, Private, read_private
from herringbone_entry.ranks.output import Output
from herringbone_entry.ranks.starter import RankStarter
from herringbone_entry.run_folder import RunFolder
from herringbone_entry.supervisor.membership import Follower, Leader, Membership
from herringbone_entry.supervisor.preparing import PreparingSupervisor
from herringbone_entry.supervisor.running import RunningSupervisor

if TYPE_CHECKING:
    from herringbone_contract.failure import Failure
    from herringbone_entry.channel.messages import Order
    from herringbone_entry.ranks.prewarm import PrewarmedRank
    from herringbone_entry.supervisor.requests import Requests

# The first line of a script does not wait for the modules of events.
_FIRST_BEAT_SECONDS = 1.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """A stop signal came before this host ran anything but its own preparation."""


def run(environ: MutableMapping[str, str], prewarmed: Sequence[PrewarmedRank] = ()) -> int:
    """Do this host's part of the job and return the exit code; `prewarmed` become its first ranks, or are discarded.

    The codes: 0; the first failing rank's own code; 143 after a stop; 1 for a failure that no rank caused.
    """
    run_folder = None
    starter = RankStarter(prewarmed, environ.get(HostVariable.STARTS, ""))
    for number in _STOP_SIGNALS:
        # At once: the kernel drops signals that the first process of a container does not handle.
        signal.signal(number, _raise_stopped)
    try:
        private = read_private(environ)
        if private is not None:
            environ.update(private.environment)
        if environ.get(HostVariable.STANDBY) == "1":
            from herringbone_entry.ranks.ahead import standby

            standby.wake(prewarmed)
        take_remote_key(environ)
        host = read_host(environ)
        if private is not None:
            host = host._replace(lifeline=private.lifeline)
        run_folder = RunFolder(host.run_folder, environ)
        requested = b"" if private is None else private.rest
        return Job(host, run_folder, starter, _key(host, private, environ), requested).run()
    except Stopped:
        return STOPPED_CODE
    except NeverStarted:
        return 0
    except HerringboneError as error:
        print(f"failed: {_record(error, environ).render()}", file=sys.stderr)
        return 1
    except Exception as error:  # noqa: BLE001 - our own bug must not look like a success, nor lose its traceback
        import traceback

        traceback.print_exc()
        _record(error, environ)
        return 1
    finally:
        starter.discard_prewarmed()
        if run_folder is not None:
            run_folder.remove()


class Job:
    """This host's event loop, supervisor and membership in the job.

    `requested` are the first bytes of clients' requests, which are read from the lifeline. Raises `HerringboneError`
    from the constructor when this host cannot even report a failure to the others.
    """

    def __init__(
        self, host: Host, run_folder: RunFolder, starter: RankStarter, key: bytes | None, requested: bytes = b""
    ) -> None:
        self._host, self._run_folder, self._starter = host, run_folder, starter
        # Bytes of requests that came with the private line.
        self._requested = requested
        # None until the first request.
        self._requests: Requests | None = None
        self._loop = Loop()
        self._output = Output(self._loop, sys.stdout.fileno())
        self._stops = 0
        self._membership: Membership = (Leader if host.is_first else Follower)(host, self._loop, key)
        self._context = HostContext(host, self._loop, self._output, self._membership.report)
        self._supervisor: PreparingSupervisor | RunningSupervisor = PreparingSupervisor(self._context, self._membership)
        # Through `_obey`, because the supervisor is replaced when the host is ready.
        self._membership.obey(self._obey)

    def run(self) -> int:
        """Prepare, take part, and return the exit code."""
        # Before any child starts: an orphan of an earlier time would not become our child, and would outlive us.
        processes.adopt_orphans()
        try:
            self._prepare()
        except HerringboneError as error:
            from herringbone_entry.supervisor import failure

            record = failure.of_error(self._host.name, error)
            self._context.report({"kind": "failed", "failure": record.to_json()})
        except Stopped:
            self._ask_to_stop("SIGTERM")
        # From now on signals arrive as calls in the loop, and `Stopped` is raised no more.
        self._loop.signals({**dict.fromkeys(_STOP_SIGNALS, self._stop), signal.SIGCHLD: self._reap})
        # `_prepare` has started children, and no signal tells of one that has ended already.
        self._reap()
        self._watch_lifeline()
        if self._host.lifeline is not None:
            # Elsewhere, on SageMaker say, each event is a line of a log that costs, and nobody watches.
            self._loop.later(min(_FIRST_BEAT_SECONDS, self._host.heartbeat), self._context.beat)
        # Everything from here on happens in callbacks of this call.
        code = self._loop.run()
        self._output.flush()
        return code

    def _prepare(self) -> None:
        if self._host.environ.get(HostVariable.STANDBY) == "1":
            self._context.log("this attempt begins in a standby, whose ranks' Pythons run already")
        prepared = prepare(self._host, self._context.log)
        # Ranks start in this folder. Our own modules are imported by now, so none of the user's can hide one.
        os.chdir(self._host.paths.code)
        self._supervisor = RunningSupervisor(self._context, self._membership, prepared, self._starter, self._run_folder)

    def _obey(self, order: Order) -> None:
        self._supervisor.receive(order)

    def _reap(self) -> None:
        self._supervisor.reap()

    def _ask_to_stop(self, why: str) -> None:
        self._context.report({"kind": "stop", "why": why, "leaving": False})

    def _stop(self, why: str = "SIGTERM") -> None:
        """Report the first stop as a stop; kill this host's processes at the second one, and report that."""
        self._stops += 1
        # A second signal means that the user does not want to wait for the grace period.
        if self._stops == 1:
            self._ask_to_stop(why)
        else:
            self._supervisor.receive({"kind": "kill"})
            self._context.report({"kind": "kill"})

    def _watch_lifeline(self) -> None:
        """Stop when the backend dies: it holds the other end of this pipe. Until then, requests come through it."""
        lifeline = self._host.lifeline
        if lifeline is None:
            return
        # A child with a copy of the lifeline could read, and so swallow, its bytes.
        os.set_inheritable(lifeline, False)
        os.set_blocking(lifeline, False)

        def read() -> None:
            with contextlib.suppress(OSError):
                if chunk := os.read(lifeline, 4096):
                    self._take_requests(chunk)
                    return
            self._loop.forget(lifeline)
            self._stop("the end of its controller's pipe")

        self._loop.read(lifeline, read)
        if self._requested:
            self._loop.later(0.0, lambda: self._take_requests(self._requested))

    def _take_requests(self, chunk: bytes) -> None:
        if self._requests is None:
            # Most jobs get no request and never need this module.
            from herringbone_entry.supervisor.requests import Requests

            self._requests = Requests(self._context)
        self._requests.feed(chunk, self._supervisor.ranks)


def _key(host: Host, private: Private | None, environ: MutableMapping[str, str]) -> bytes | None:
    """Return the job's secret; None for a lone host, which shares it with nobody."""
    if host.control is None or len(host.resources.hosts) == 1:
        return None
    return private.key if private is not None and private.key is not None else take_key(environ)


def _record(error: Exception, environ: Mapping[str, str]) -> Failure:
    """Write the failure of a host that could not tell the others, and return it."""
    from herringbone_entry.supervisor import failure

    record = failure.of_error(None, error)
    failure.write(base_paths(environ), record)
    return record


def _raise_stopped(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped
