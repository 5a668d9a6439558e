"""The end of a job, here: fetch what its hosts left, judge, pack, and write the result into the index.

In a thread: who waits for a job wants to be told meanwhile. Of several processes that follow one job, one does it.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from herringbone.backends.ssh.job_state import judge_job
from herringbone.backends.ssh.running_jobs import registered
from herringbone.controller.artifacts import pack
from herringbone.controller.log_files import LogFile
from herringbone.controller.verdict import Verdict
from herringbone.jobs.index import FAILED, UPLOADING, JobIndex, JobRecord
from herringbone.planning.checks import output_folder
from herringbone_contract.errors import HerringboneError
from herringbone_contract.failure import Failure
from herringbone_contract.paths import Paths

if TYPE_CHECKING:
    from herringbone.backends.ssh.follow import Following, HostView
    from herringbone.backends.ssh.inventory import Machine
    from herringbone.backends.ssh.retry import Renewal
    from herringbone.backends.ssh.transport import Road
    from herringbone.jobs.home import Home
    from herringbone.planning.plan import JobPlan

_THREADS = 8


class Ending:
    """Begins at once, in a thread of its own; it is over when the index says how the job ended, or where it goes on."""

    def __init__(
        self,
        record: JobRecord,
        plan: JobPlan,
        following: Following,
        road: Road[Machine],
        home: Home,
        *,
        renewal: Renewal,
    ) -> None:
        self._record, self._plan, self._following, self._road = record, plan, following, road
        self._renewal = renewal
        self._now = registered(record)
        self._folder = home.job(record.name)
        self._index = JobIndex(home.index)
        # Not a daemon: a program that ends meanwhile would leave the result half fetched.
        Thread(target=self._run).start()

    def _run(self) -> None:
        self._folder.path.mkdir(mode=0o700, exist_ok=True)
        self._folder.logs.mkdir(exist_ok=True)
        with (self._folder.path / "ending.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            record = self._index.get(self._record.name)
            # Another process may have brought it to its end, or begun the next attempt.
            if not record.done and record.service == self._record.service:
                self._conclude()

    def _conclude(self) -> None:
        verdict, model = judge_job(self._following.states), None
        if verdict.failure is not None:
            # A machine that went away since has no say in whether the job goes on.
            with contextlib.suppress(HerringboneError):
                self._each(self._fetch_log)
            try:
                if self._renewal.begin(verdict):
                    return
            except (HerringboneError, OSError) as error:
                why = f"{verdict.failure.message}; the job could not begin anew: {error}".removeprefix("; ")
                verdict = replace(verdict, failure=verdict.failure._replace(message=why))
        self._index.update(self._record.name, unless_done=True, secondary_status=UPLOADING)
        try:
            self._each(self._fetch)
            model = self._pack(with_model=verdict.failure is None)
        except (HerringboneError, OSError) as error:
            if verdict.failure is None:
                verdict = Verdict(FAILED, FAILED, self._not_fetched(error))
        self._index.update(
            self._record.name,
            unless_done=True,
            status=verdict.status,
            secondary_status=verdict.secondary_status,
            ended=time.time(),
            failure=None if verdict.failure is None else verdict.failure.to_json(),
            model=None if model is None else str(model),
        )

    def _each(self, fetch: Callable[[HostView], None]) -> None:
        # A machine that was given up would be waited for in vain.
        views = [view for view in self._following.views.values() if view.state.done]
        with ThreadPoolExecutor(_THREADS) as pool:
            # All of them, whatever becomes of one.
            calls = [pool.submit(fetch, view) for view in views]
        for call in calls:
            call.result()

    def _fetch(self, view: HostView) -> None:
        """Bring a host's log, its model and its output to where a host of this machine has them."""
        assert view.row is not None
        self._fetch_log(view)
        for folder in view.left:
            inside = Path(folder).relative_to(f"jobs/{self._now.name}")
            self._road.fetch(view.machine, f"{view.row['work']}/{folder}", self._folder.path / inside)

    def _fetch_log(self, view: HostView) -> None:
        """Bring a host's log here, behind those of the attempts before."""
        assert view.row is not None
        fetched = self._folder.logs / f".{view.host}"
        self._road.fetch(view.machine, f"{view.row['work']}/jobs/{self._now.name}/logs", fetched)
        with (
            contextlib.suppress(FileNotFoundError),
            (fetched / f"{view.host}.log").open("rb") as log,
            self._folder.log(view.host).open("ab") as filed,
        ):
            filed.truncate(self._now.begins.get(view.host, 0))
            shutil.copyfileobj(log, filed)
        shutil.rmtree(fetched, ignore_errors=True)

    def _pack(self, *, with_model: bool) -> Path | None:
        output = output_folder(self._plan, self._folder)
        compress = not self._plan.options.disable_output_compression
        ending = ".tar.gz" if compress else ""
        bases = [(host, Paths(self._folder.host(host))) for host in self._following.views]
        data = [(host, Path(paths.output_data)) for host, paths in bases]
        if any(next(folder.rglob("*"), None) for _, folder in data):
            pack(data, output / f"output{ending}", compress=compress, say=self._say)
        if not with_model:
            return None
        models = [(host, Path(paths.model)) for host, paths in bases]
        return pack(models, output / f"model{ending}", compress=compress, say=self._say)

    def _say(self, text: str) -> None:
        """File a line of our own in the first host's log."""
        host = next(iter(self._following.views))
        log = LogFile(str(self._folder.log(host)))
        log.say(f"[{host}] packing: {text}", time.time())
        log.close(time.time())

    def _not_fetched(self, error: Exception) -> Failure:
        places = ", ".join(
            f"{view.machine.name}:{view.row['work']}/jobs/{self._now.name}"
            for view in self._following.views.values()
            if view.row is not None
        )
        return Failure(
            exception=type(error).__name__,
            exit_code=0,
            message=f"the job ran to its end, but what it left could not be brought here: {error}; it is in {places}",
        )
