"""One more attempt of a job whose attempt failed: by whoever looks at it, on the machines that can be had by then.

logs fetched -> `controller.retry` decides -> checkpoints fetched -> machines locked, checkpoints sent -> hosts started
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from herringbone.backends.ssh.host_selection import inventory_path, read_inventory
from herringbone.backends.ssh.running_jobs import Registered, attempt_name, registered
from herringbone.backends.ssh.submission import Again, Submission
from herringbone.backends.ssh.upload import Code
from herringbone.controller.attempts import newest_file, read_log
from herringbone.controller.log_files import LogFile
from herringbone.controller.retry import (
    Attempt,
    announcement,
    decide,
    describe_attempts,
    excluded_machines,
    find_policy,
    policies_of,
)
from herringbone.jobs.home import Home, JobFolder
from herringbone.jobs.index import RESTARTING, STOPPING, TRAINING, JobIndex, JobRecord
from herringbone.planning.checks import checkpoint_folder
from herringbone_contract.constants import MASK
from herringbone_contract.errors import HostError

if TYPE_CHECKING:
    from herringbone.backends.ssh.follow import Following, HostView
    from herringbone.backends.ssh.inventory import Machine
    from herringbone.backends.ssh.transport import Road
    from herringbone.controller.verdict import Verdict
    from herringbone.engine.client import Engine
    from herringbone.estimators.options import Options
    from herringbone.planning.plan import JobPlan

_THREADS = 8


class Renewal:
    """The next attempt of a job, after the one that `following` followed.

    >>> Renewal(record, plan, following, road, home, environ=os.environ, find=find).begin(verdict)   # doctest: +SKIP
    True

    `plan` is unmasked where this Python submitted it.
    """

    def __init__(
        self,
        record: JobRecord,
        plan: JobPlan,
        following: Following,
        road: Road[Machine],
        home: Home,
        *,
        environ: Mapping[str, str],
        find: Callable[[], Engine],
    ) -> None:
        self._record, self._plan, self._following = record, plan, following
        self._road, self._home, self._environ, self._find = road, home, environ, find
        self._folder: JobFolder = home.job(record.name)
        self._index = JobIndex(home.index)
        self._now: Registered = registered(record)

    @property
    def retries(self) -> int:
        """How many more attempts than one the job may have."""
        return self._plan.options.max_retry_attempts or 0

    def begin(self, verdict: Verdict) -> bool:
        """Begin the next attempt if the job may have one after an attempt that ended so; say whether it did.

        The logs of the failed attempt are here. Raises `HerringboneError` or `OSError` where it should and cannot.
        """
        if not self.retries or self._is_stopping():
            return False
        logs = {host: read_log(self._folder.logs, host, self._now.begins.get(host, 0)) for host in self._now.machines}
        policies = policies_of(self._plan.options.log_policies)
        failed = decide(verdict, find_policy(policies, logs), self._now.places, self._now.failed, self.retries)
        if failed is None:
            return False
        self._check()
        self._index.update(self._record.name, unless_done=True, secondary_status=RESTARTING)
        checkpoints = self._checkpoints()
        name = attempt_name(self._record.name, failed.number + 1)
        plan = msgspec.structs.replace(self._plan, options=self._options())
        submission = Submission(
            plan,
            read_inventory(inventory_path(plan)),
            self._road,
            scratch=self._home.cache / "code",
            environ=self._environ,
            find=self._find,
            again=Again(name=name, code=self._code(), checkpoints=checkpoints, without=self._without(failed)),
        )
        started = submission.run()
        for _, visit in started.values():
            visit.close()
        self._write_down(name, failed, {host: machine for host, (machine, _) in started.items()}, checkpoints)
        return True

    def _is_stopping(self) -> bool:
        return self._index.get(self._record.name).status == STOPPING

    def _options(self) -> Options:
        """Return the options with what is left of `max_run`, which counts all attempts together."""
        spent = time.time() - (self._record.started or time.time())
        left = int(self._plan.options.max_run - spent)
        if left < 1:
            raise HostError(f"max_run, {self._plan.options.max_run} s of all attempts together, is over")
        return msgspec.structs.replace(self._plan.options, max_run=left)

    def _check(self) -> None:
        """Raise `HostError` where this Python cannot start what another one submitted."""
        hidden = [name for name, value in self._plan.environment.items() if value == MASK]
        hidden += [name for name, value in self._plan.hyperparameters.items() if MASK in value]
        if hidden:
            raise HostError(
                f"only the Python that submitted it knows {', '.join(hidden)}, and it is gone; submit the job again, "
                "and it goes on from its checkpoints where checkpoint_s3_uri names a folder for them"
            )
        if self._now.code_path is None:
            raise HostError("it was submitted elsewhere, and its code is there; look at it from there")

    def _code(self) -> Code:
        assert self._now.code_path is not None
        assert self._now.code_digest is not None
        return Code(digest=self._now.code_digest, path=Path(self._now.code_path))

    def _without(self, failed: Attempt) -> dict[str, str]:
        """Return the machines that this attempt cannot have: those silent now, and those excluded for good."""
        silent = {state.machine: f"cannot be reached: {state.lost}" for state in self._following.states if state.lost}
        return {**silent, **excluded_machines([*self._now.failed, failed])}

    def _checkpoints(self) -> Path | None:
        """Fetch what the hosts have saved, and return it as one folder; None where they share one, or there is nothing.

        Of files of one name the newest counts, as in a bucket that all hosts write to. Of a machine that went away
        meanwhile, what an earlier attempt brought has to do.
        """
        if checkpoint_folder(self._plan) is not None:
            return None
        folder = self._folder.path / "checkpoints"
        views = [view for view in self._following.views.values() if view.state.done]
        with ThreadPoolExecutor(_THREADS) as pool:
            for call in [pool.submit(self._fetch_checkpoints, view, folder / view.host) for view in views]:
                call.result()
        return gathered(folder)

    def _fetch_checkpoints(self, view: HostView, into: Path) -> None:
        assert view.row is not None
        there = JobFolder(Path(view.row["work"], "jobs", self._now.name)).host(view.host) / "checkpoints"
        # Whole or not at all.
        fetched = into.with_name(f".{into.name}")
        with contextlib.suppress(HostError):
            self._road.fetch(view.machine, str(there), fetched)
            shutil.rmtree(into, ignore_errors=True)
            fetched.replace(into)

    def _write_down(self, name: str, failed: Attempt, machines: dict[str, Machine], checkpoints: Path | None) -> None:
        """Say where the job goes on: in its log, and in the index."""
        places = {host: machine.name for host, machine in machines.items()}
        kept = checkpoints or checkpoint_folder(self._plan)
        newest = None if kept is None else newest_file(kept)
        failed = replace(failed, announced=announcement(failed, self.retries, places, newest))
        hosts = [host.name for host in self._plan.hosts]
        begins = {}
        for host in hosts:
            log = LogFile(str(self._folder.log(host)))
            if host == hosts[0]:
                log.say(f"[{host}] {failed.announced}", time.time())
            begins[host] = log.size
            log.close(time.time())
        story = (*self._now.failed, failed)
        now = msgspec.structs.replace(self._now, machines=machines, name=name, failed=story, begins=begins)
        self._index.update(
            self._record.name,
            unless_done=True,
            service=now.to_json(),
            secondary_status=STOPPING if self._is_stopping() else TRAINING,
            description=describe_attempts(story),
        )
        if self._is_stopping():
            # The stop reached the machines of the attempt before.
            for machine in machines.values():
                with self._road.visit(machine) as visit:
                    visit.ask({"ask": "stop", "job": name, "grace": None})


def gathered(folder: Path) -> Path | None:
    """Return a folder with the files of all hosts' folders in `folder`, the newest of each name; None without any."""
    into = folder / ".all"
    shutil.rmtree(into, ignore_errors=True)
    found: dict[Path, Path] = {}
    hosts = [each for each in sorted(folder.iterdir()) if not each.name.startswith(".")] if folder.is_dir() else []
    for host in hosts:
        for file in host.rglob("*"):
            inside = file.relative_to(host)
            if not file.is_file():
                continue
            if inside not in found or file.stat().st_mtime_ns > found[inside].stat().st_mtime_ns:
                found[inside] = file
    for inside, file in found.items():
        target = into / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(file, target)
    return into if found else None
