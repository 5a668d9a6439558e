"""One host's part of a job, from `who am I` to the exit code: joins the rooms together."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import MutableMapping
from types import FrameType
from typing import NoReturn

from herringbone_entry import failure
from herringbone_entry.host import Host, base_paths, read_host
from herringbone_entry.loop import Loop
from herringbone_entry.output import Output
from herringbone_entry.party import FirstHost, OtherHost, Party
from herringbone_entry.prepare import prepare
from herringbone_entry.supervisor import Supervisor
from herringbone_spec.errors import HerringboneError

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """A stop came while there was nothing to stop but our own preparations."""


def run(environ: MutableMapping[str, str]) -> int:
    """Do this host's part of the job and return the exit code.

    The codes: 0; the first failing rank's own code; 143 after a stop; 1 for what no rank is to blame for.
    """
    own_folder = None
    try:
        host = read_host(environ)
        run_folder = host.run_folder
        if run_folder is None:
            run_folder = own_folder = tempfile.mkdtemp(prefix="hb-")
        return Job(host, run_folder, environ).run()
    except HerringboneError as error:
        found = failure.of_error(None, error)
        failure.write(base_paths(environ), found)
        print(f"failed: {found.render()}", file=sys.stderr)
        return 1
    except Exception as error:  # noqa: BLE001 - our own bug must not look like a success, nor lose its traceback
        traceback.print_exc()
        failure.write(base_paths(environ), failure.of_error(None, error))
        return 1
    finally:
        if own_folder is not None:
            shutil.rmtree(own_folder, ignore_errors=True)


class Job:
    """This host's loop, supervisor and place among the hosts.

    Raises `HerringboneError` from the constructor when the hosts cannot even be told of a failure.
    """

    def __init__(self, host: Host, run_folder: str, environ: MutableMapping[str, str]) -> None:
        self._host = host
        self._loop = Loop()
        self._output = Output(self._loop, sys.stdout.fileno())
        self._stops = 0
        self._party: Party
        if host.is_first:
            self._party = FirstHost(host, self._loop, environ)
        else:
            self._party = OtherHost(host, self._loop, environ)
        self._supervisor = Supervisor(
            host, run_folder, self._loop, self._output, tell=self._party.tell, on_end=self._party.leave
        )
        self._party.obey(self._supervisor.receive)

    def run(self) -> int:
        """Prepare, take part, and return the exit code."""
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
        for number in _STOP_SIGNALS:
            signal.signal(number, _raise_stopped)
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
        """Stop when the backend dies: it holds the other end of this pipe, and never writes."""
        lifeline = self._host.lifeline
        if lifeline is None:
            return
        os.set_inheritable(lifeline, False)
        os.set_blocking(lifeline, False)

        def cut() -> None:
            self._loop.forget(lifeline)
            self._stop()

        self._loop.read(lifeline, cut)


def _raise_stopped(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped
