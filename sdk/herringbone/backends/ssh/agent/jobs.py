"""The jobs on this machine, of each the one host that it plays: start, list, stop, remove."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from herringbone.backends.ssh.agent.host_config import HostConfig
from herringbone.backends.ssh.agent.keeping import Keepers
from herringbone.backends.ssh.agent.messages import Message
from herringbone.backends.ssh.agent.process_host import MACHINES, ProcessHost
from herringbone.backends.ssh.attempts.job_state import KILLED_LATE
from herringbone.records.home import Home
from herringbone.records.index import JobIndex, JobRecord
from herringbone_contract.errors import JobNotFoundError

if TYPE_CHECKING:
    from herringbone.backends.detached import DetachedBackend
    from herringbone.backends.ssh.agent.line import MachineLine
    from herringbone.slots.claim import Claim


class MachineJobs:
    """Answers the requests about jobs below `home`; `line` has the claim of this connection.

    `backends` are those that start, stop and describe hosts, by job.
    """

    def __init__(self, home: Home, line: MachineLine, backends: dict[str, DetachedBackend] | None = None) -> None:
        self._home, self._line = home, line
        self._backends = {} if backends is None else backends
        self._keepers = Keepers(home)

    @property
    def verbs(self) -> dict[str, Callable[[Message, bytes], Message]]:
        return {
            "start": self._start,
            "jobs": self._jobs,
            "place": self._place,
            "stop": self._stop,
            "kill": self._kill,
            "forget": self._forget,
            "clean": self._clean,
            **self._keepers.verbs,
        }

    def describe(self, job: str) -> JobRecord:
        """Return the present row of a job. Raises `JobNotFoundError`."""
        return self.backend_of(job).describe(job)

    def backend_of(self, job: str) -> DetachedBackend:
        """Return the backend of a job in the index. Raises `JobNotFoundError`."""
        if job not in self._backends:
            self._backends[job] = backend_named(self._home, JobIndex(self._home.index).get(job).backend)
        return self._backends[job]

    def _start(self, message: Message, _: bytes) -> Message:
        from herringbone.plan.plan import parse_plan

        config = msgspec.convert(message["config"], HostConfig)
        plan = parse_plan(config.plan)
        backend = backend_named(
            self._home, "container" if config.image else "host", config, slot=self._line.hand_over()
        )
        backend.submit(plan)
        controller = JobIndex(self._home.index).get(plan.job_name).controller
        # The controller holds the lock until the host has ended, whatever becomes of this connection.
        self._line.lock.hand_over(self._line.holder, str(controller))
        if "keeper" in message:
            self._keepers.hand_over({**message["keeper"], "base": message["config"]})
        return {}

    def _jobs(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        jobs = []
        for record in JobIndex(self._home.index).all():
            # A job without this file was killed before its host started.
            with contextlib.suppress(OSError, ValueError):
                machines = json.loads((self._home.job(record.name).path / MACHINES).read_text())
                row = backend_named(self._home, record.backend).describe(record.name)
                members = self._keepers.members(record.name)
                jobs.append({"row": asdict(row), "machines": machines, "members": members})
        return {"jobs": jobs}

    def _place(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        """Return what another connection needs to run a command of ours here."""
        return {"python": sys.executable, "work": str(self._home.path)}

    def _stop(self, message: Message, _: bytes) -> Message:
        for name in self._keepers.last_of(message["job"]):
            self.backend_of(name).stop(name, message["grace"])
        return {}

    def _kill(self, message: Message, _: bytes) -> Message:
        if message.get("late"):
            # Before the kill: whoever judges the job must not take it for a request of the user.
            JobIndex(self._home.index).update(message["job"], unless_done=True, description=KILLED_LATE)
            self.backend_of(message["job"]).kill(message["job"])
            return {}
        for name in self._keepers.last_of(message["job"]):
            self.backend_of(name).kill(name)
        return {}

    def _forget(self, message: Message, _: bytes) -> Message:
        """Kill a job and remove everything of it, so that its name is free again; with `if_over`, kill nothing."""
        from herringbone.system.disk import remove

        name, if_over = message["job"], message.get("if_over", False)
        try:
            backend = self.backend_of(name)
        except JobNotFoundError:
            if if_over:
                return {}
            raise
        # A job of that name that runs may be another one, submitted from elsewhere.
        if if_over and not backend.describe(name).done:
            return {}
        backend.kill(name)
        JobIndex(self._home.index).remove(name)
        # The next clean-up tries again.
        with contextlib.suppress(OSError):
            remove(self._home.job(name).path)
        return {}

    def _clean(self, message: Message, _: bytes) -> Message:
        from herringbone.backends.ssh.agent.cleanup import clean

        for record in JobIndex(self._home.index).all():
            # `describe` marks jobs as lost whose controller was killed; otherwise they would never count as over.
            backend_named(self._home, record.backend).describe(record.name)
        # The lock keeps new jobs away while files are removed that they might count on.
        lock, holder = self._line.lock, self._line.holder
        owner = lock.acquire({"job": "herringbone hosts clean", "client": message["client"]}, holder=holder)
        try:
            stale_files = clean(
                self._home,
                older=message["older"],
                now=time.time(),
                idle=owner is None,
                environment=Path(sys.prefix),
                dry=message["dry"],
            )
        finally:
            lock.release(holder)
        return {"stale_files": msgspec.to_builtins(stale_files), "runs": "" if owner is None else owner["job"]}


def backend_named(
    home: Home, name: str, config: HostConfig | None = None, *, slot: Claim | None = None
) -> DetachedBackend:
    """Return the backend with a name, as the index stores it; only a start needs `config` and the claim `slot`."""
    if name == ProcessHost.name:
        return ProcessHost(home, config, slot=slot)
    # Imported here: it loads the modules of the container engine.
    from herringbone.backends.ssh.agent.container_host import ContainerHost

    return ContainerHost(home, config, slot=slot)
