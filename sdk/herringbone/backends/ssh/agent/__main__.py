"""`python -m herringbone.backends.ssh.agent WORK`: serves one connection on a machine, with the files of a work folder.

    [1] read requests            {"ask": "claim", "number": 3, ...}
    [2] answer each at once      {"answer": 3, ...} or {"answer": 3, "refused": why}
    [3] publish subscriptions    {"row": job, ...} and {"log": number} with bytes, whenever they change
    [4] end of input             the client has closed the connection: the agent ends, the hosts that it started run on

One thread does all of this, so no member needs a lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from herringbone.backends.ssh.agent.host_config import HostConfig
from herringbone.backends.ssh.agent.line import SILENCE_SECONDS, MachineLine
from herringbone.backends.ssh.agent.messages import Message, Unpacker, pack
from herringbone.backends.ssh.agent.process_host import MACHINES, ProcessHost
from herringbone.backends.ssh.agent.store import FileStore, ImageStore
from herringbone.backends.ssh.agent.subscriptions import Subscriptions
from herringbone.backends.ssh.attempts.job_state import KILLED_LATE
from herringbone.records.home import Home
from herringbone.records.index import JobIndex, JobRecord
from herringbone_contract.errors import HerringboneError, JobNotFoundError

if TYPE_CHECKING:
    from herringbone.backends.detached import DetachedBackend
    from herringbone.protocols.backend import Answers
    from herringbone.slots.claim import Claim

_READ_BYTES = 1 << 20
# Pauses between two looks at the subscriptions: a look at a row and at a log takes 0.2 ms.
_SHORTEST_PAUSE, _LONGEST_PAUSE, _SLOWER = 0.005, 0.1, 1.1


class Agent:
    """Answers requests over two descriptors; `home` is the work folder."""

    def __init__(self, home: Home, *, input_fd: int = 0, output_fd: int = 1) -> None:
        self._home = home
        self._input, self._output = input_fd, output_fd
        self._files, self._images = FileStore(home), ImageStore()
        self._line = MachineLine(home)
        # job -> the backend that starts, stops and describes its host
        self._backends: dict[str, DetachedBackend] = {}
        self._subscriptions = Subscriptions(home, self._describe, self._send)
        # Requests of this connection: one that no controller has taken yet ends with it.
        self._asked: list[Answers] = []
        self._verbs: dict[str, Callable[[Message, bytes], Message]] = {
            "facts": self._facts,
            "detailed_facts": self._detailed_facts,
            "device_rates": self._device_rates,
            "measure": self._measure,
            **self._line.verbs,
            "owner": self._owner,
            "missing": self._missing,
            "code": self._add_code,
            "keep": self._complete_data,
            "image": self._find_image,
            "load": self._load_image,
            "start": self._start,
            "jobs": self._jobs,
            "follow": self._follow,
            "log": self._follow_log,
            "request": self._request,
            "place": self._place,
            "stop": self._stop,
            "kill": self._kill,
            "forget": self._forget,
            "clean": self._clean,
        }

    def run(self) -> None:
        """Answer until the client closes the connection."""
        unpacker = Unpacker()
        # The client holds its requests back until now: before, the bootstrap would have read them.
        self._send({"ready": True})
        pause = _SHORTEST_PAUSE
        while True:
            # Without subscriptions nothing can change by itself, so wait for a request without a limit.
            timeout = pause if self._subscriptions.is_active else SILENCE_SECONDS if self._line.waits else None
            ready, _, _ = select.select([self._input], [], [], timeout)
            if not ready and timeout == SILENCE_SECONDS:
                self._line.leave()
            if ready:
                chunk = os.read(self._input, _READ_BYTES)
                if not chunk:
                    # [4] End of input. This also ends the agent when the client or its machine dies.
                    self._line.leave()
                    for answers in self._asked:
                        answers.close()
                    return
                for message, payload in unpacker.feed(chunk):
                    self._answer(message, payload)
                pause = _SHORTEST_PAUSE
            # Polling: other processes write the rows (SQLite) and the logs. Idle jobs are polled less often.
            pause = _SHORTEST_PAUSE if self._subscriptions.publish() else min(pause * _SLOWER, _LONGEST_PAUSE)

    def _answer(self, message: Message, payload: bytes) -> None:
        number = message.get("number")
        # A refusal ends one request and not the connection, which may hold the lock of the machine.
        try:
            answer = self._verbs[message["ask"]](message, payload)
        except HerringboneError as error:
            answer = {"refused": str(error), "kind": type(error).__name__}
        except OSError as error:
            answer = {"refused": f"{error.strerror or error}: {error.filename or self._home.path}", "kind": "OSError"}
        self._send({"answer": number, **answer})

    def _send(self, message: Message, payload: bytes = b"") -> None:
        remaining = memoryview(pack(message, payload))
        # `os.write` may return after a part of the bytes, for example when a signal interrupts it.
        while remaining:
            remaining = remaining[os.write(self._output, remaining) :]

    # Facts about the machine. Their modules are imported here because most connections need few of them.

    def _facts(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        from herringbone.backends.ssh.agent import host_facts

        self._home.make()
        return {"work": str(self._home.path), "now": time.time(), **host_facts.host_facts(self._home.path)}

    def _detailed_facts(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        from herringbone.backends.ssh.agent import host_facts

        return host_facts.detailed_facts()

    def _device_rates(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        from herringbone.backends.ssh.agent import device_rates

        return device_rates.measured()

    def _measure(self, message: Message, _: bytes) -> Message:
        from herringbone.backends.ssh.agent import bandwidth

        # The sender needs the listener's port while the listener still waits, so the port travels before the answer.
        return bandwidth.measure(message, lambda port: self._send({"listening": message["number"], "port": port}))

    def _owner(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        return {"owner": self._line.lock.owner()}

    # Uploads

    def _missing(self, message: Message, _: bytes) -> Message:
        return {"code": not self._files.has_code(message["code"]), "data": self._files.prepare(message["data"])}

    def _add_code(self, message: Message, payload: bytes) -> Message:
        self._files.add_code(message["digest"], payload)
        return {}

    def _complete_data(self, message: Message, _: bytes) -> Message:
        # The client's rsync has copied the data past this process, and it alone knows when rsync has ended.
        self._files.complete(message["digest"])
        return {}

    def _find_image(self, message: Message, _: bytes) -> Message:
        image = self._images.find(message["name"])
        return {"id": None} if image is None else {"id": image.id, "is_ours": image.is_ours}

    def _load_image(self, message: Message, payload: bytes) -> Message:
        # A message without a payload ends the image: its pieces are never empty.
        if payload:
            self._images.feed(payload)
        else:
            self._images.finish(message["wanted"])
        return {}

    # Jobs

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
        return {}

    def _jobs(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        jobs = []
        for record in JobIndex(self._home.index).all():
            # A job without this file was killed before its host started.
            with contextlib.suppress(OSError, ValueError):
                machines = json.loads((self._home.job(record.name).path / MACHINES).read_text())
                row = backend_named(self._home, record.backend).describe(record.name)
                jobs.append({"row": asdict(row), "machines": machines})
        return {"jobs": jobs}

    def _follow(self, message: Message, _: bytes) -> Message:
        # Raises `JobNotFoundError` for an unknown job now, as an answer to this request.
        self._backend_of(message["job"])
        self._subscriptions.follow(message["job"], message["host"])
        return {}

    def _follow_log(self, message: Message, _: bytes) -> Message:
        folder = self._home.job(message["job"])
        # A client names one of these files, and no other of the machine.
        files = {"log": folder.log, "events": folder.events, "metrics.events": folder.metric_events}
        file = files[message.get("file", "log")](message["host"])
        self._subscriptions.follow_log(message["number"], file, message["offset"])
        # The client knows by it when it has all that there is now.
        return {"size": file.stat().st_size if file.exists() else 0}

    def _place(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        """Return what another connection needs to run a command of ours here."""
        return {"python": sys.executable, "work": str(self._home.path)}

    def _request(self, message: Message, _: bytes) -> Message:
        """Hand a client's request to the job's controller, and send the events of the host from now on."""
        events = self._home.job(message["job"]).events(message["host"])
        offset = events.stat().st_size if events.exists() else 0
        self._asked.append(self._backend_of(message["job"]).ask(message["job"], message["request"]))
        self._subscriptions.follow_log(message["number"], events, offset)
        return {}

    def _stop(self, message: Message, _: bytes) -> Message:
        self._backend_of(message["job"]).stop(message["job"], message["grace"])
        return {}

    def _kill(self, message: Message, _: bytes) -> Message:
        if message.get("late"):
            # Before the kill: whoever judges the job must not take it for a request of the user.
            JobIndex(self._home.index).update(message["job"], unless_done=True, description=KILLED_LATE)
        self._backend_of(message["job"]).kill(message["job"])
        return {}

    def _forget(self, message: Message, _: bytes) -> Message:
        """Kill a job and remove everything of it, so that its name is free again; with `if_over`, kill nothing."""
        from herringbone.system.disk import remove

        name, if_over = message["job"], message.get("if_over", False)
        try:
            backend = self._backend_of(name)
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

    def _describe(self, job: str) -> JobRecord:
        return self._backend_of(job).describe(job)

    def _backend_of(self, job: str) -> DetachedBackend:
        """Return the backend of a job in the index. Raises `JobNotFoundError`."""
        if job not in self._backends:
            self._backends[job] = backend_named(self._home, JobIndex(self._home.index).get(job).backend)
        return self._backends[job]


def backend_named(
    home: Home, name: str, config: HostConfig | None = None, *, slot: Claim | None = None
) -> DetachedBackend:
    """Return the backend with a name, as the index stores it; only a start needs `config` and the claim `slot`."""
    if name == ProcessHost.name:
        return ProcessHost(home, config, slot=slot)
    # Imported here: it loads the modules of the container engine.
    from herringbone.backends.ssh.agent.container_host import ContainerHost

    return ContainerHost(home, config, slot=slot)


def main() -> None:
    """Serve the connection on standard input and output."""
    Agent(Home(Path(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
