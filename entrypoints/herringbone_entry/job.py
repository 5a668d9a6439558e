"""One host's part of a job, from `who am I` to the exit code: joins the rooms together.

The user waits for the first line while this is imported: what most jobs do not need is imported where it is used, and
values are NamedTuples, for `dataclasses` brings `inspect` along and compiles each class anew (18 ms of 80).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import MutableMapping
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from herringbone_contract.errors import HerringboneError
from herringbone_entry import processes
from herringbone_entry.host import Host, base_paths, read_host, take_key
from herringbone_entry.preparation.prepare import prepare
from herringbone_entry.private import Private, read_private
from herringbone_entry.ranks.output import Output
from herringbone_entry.ranks.starter import RankStarter
from herringbone_entry.run_folder import RunFolder
from herringbone_entry.supervisor import failure
from herringbone_entry.supervisor.coordinator import STOPPED_CODE
from herringbone_entry.supervisor.event_loop import Loop
from herringbone_entry.supervisor.membership import FirstHost, OtherHost, Party
from herringbone_entry.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from herringbone_entry.ranks.prewarm import Spare

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """A stop came while there was nothing to stop but our own preparations."""


def run(environ: MutableMapping[str, str], spare: Spare | None = None) -> int:
    """Do this host's part of the job and return the exit code; `spare` will be its first rank, or is discarded.

    The codes: 0; the first failing rank's own code; 143 after a stop; 1 for what no rank is to blame for.
    """
    run_folder = None
    starter = RankStarter(spare)
    for number in _STOP_SIGNALS:
        # At once: a process that is PID 1 of a container ignores what it does not handle.
        signal.signal(number, _raise_stopped)
    try:
        private = read_private(environ)
        if private is not None:
            environ.update(private.environment)
        host = read_host(environ)
        if private is not None:
            host = host._replace(lifeline=private.lifeline)
        run_folder = RunFolder(host.run_folder, environ)
        return Job(host, run_folder, starter, _key(host, private, environ)).run()
    except Stopped:
        return STOPPED_CODE
    except HerringboneError as error:
        found = failure.of_error(None, error)
        failure.write(base_paths(environ), found)
        print(f"failed: {found.render()}", file=sys.stderr)
        return 1
    except Exception as error:  # noqa: BLE001 - our own bug must not look like a success, nor lose its traceback
        import traceback

        traceback.print_exc()
        failure.write(base_paths(environ), failure.of_error(None, error))
        return 1
    finally:
        starter.discard_spare()
        if run_folder is not None:
            run_folder.remove()


class Job:
    """This host's loop, supervisor and place among the hosts.

    Raises `HerringboneError` from the constructor when the hosts cannot even be told of a failure.
    """

    def __init__(self, host: Host, run_folder: RunFolder, starter: RankStarter, key: bytes | None) -> None:
        self._host = host
        self._loop = Loop()
        self._output = Output(self._loop, sys.stdout.fileno())
        self._stops = 0
        self._party: Party
        if host.is_first:
            self._party = FirstHost(host, self._loop, key)
        else:
            self._party = OtherHost(host, self._loop, key)
        self._supervisor = Supervisor(
            host,
            run_folder,
            self._loop,
            self._output,
            starter,
            party=self._party,
        )
        self._party.obey(self._supervisor.receive)

    def run(self) -> int:
        """Prepare, take part, and return the exit code."""
        # Before there is anything to leave behind: who is orphaned sooner is nobody's, and outlives us.
        processes.adopt_orphans()
        try:
            self._prepare()
        except HerringboneError as error:
            self._party.tell({"kind": "failed", "failure": failure.of_error(self._host.name, error).to_json()})
        except Stopped:
            self._party.tell({"kind": "stop"})
        self._loop.signals({**dict.fromkeys(_STOP_SIGNALS, self._stop), signal.SIGCHLD: self._supervisor.reap})
        self._watch_lifeline()
        code = self._loop.run()
        self._output.flush()
        return code

    def _prepare(self) -> None:
        prepared = prepare(self._host, self._supervisor.log)
        # Where the ranks begin; ours are imported by now, and nothing of ours is looked for in this folder.
        os.chdir(self._host.paths.code)
        self._supervisor.ready(prepared)

    def _stop(self) -> None:
        self._stops += 1
        if self._stops == 1:
            self._party.tell({"kind": "stop"})
        else:
            self._supervisor.receive({"kind": "kill"})
            self._party.tell({"kind": "kill"})

    def _watch_lifeline(self) -> None:
        """Stop when the backend dies: it holds the other end of this pipe, and has nothing more to say."""
        lifeline = self._host.lifeline
        if lifeline is None:
            return
        os.set_inheritable(lifeline, False)
        os.set_blocking(lifeline, False)

        def look() -> None:
            with contextlib.suppress(OSError):
                if os.read(lifeline, 4096):
                    return
            self._loop.forget(lifeline)
            self._stop()

        self._loop.read(lifeline, look)


def _key(host: Host, private: Private | None, environ: MutableMapping[str, str]) -> bytes | None:
    """Return the job's secret, where there are others to share it with."""
    if host.control is None or len(host.resources.hosts) == 1:
        return None
    return private.key if private is not None and private.key is not None else take_key(environ)


def _raise_stopped(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped
