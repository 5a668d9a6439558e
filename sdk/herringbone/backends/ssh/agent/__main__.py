"""`python -m herringbone.backends.ssh.agent WORK`: answers one visitor on a machine, and knows what is on its disk.

Each request names a verb and a number, and its answer that number: {"ask": "lock", "number": 3, ...} is answered by
{"answer": 3, ...} or {"answer": 3, "refused": why}. A visitor who follows is told without asking, {"row": job, ...} and
{"log": number} with bytes behind it, as things change. When the visitor hangs up, the desk ends; what it started goes
on.
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
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.backends.ssh.agent.host_config import StartOrder
from herringbone.backends.ssh.agent.lock import MachineLock
from herringbone.backends.ssh.agent.messages import Message, Unpacker, pack
from herringbone.backends.ssh.agent.process_host import MACHINES, Hosting, code_folder, data_folder, left_behind
from herringbone.jobs.home import Home
from herringbone.jobs.index import TERMINAL, JobIndex, JobRecord
from herringbone.processes import identity
from herringbone_contract.errors import HerringboneError
from herringbone_contract.paths import Paths

if TYPE_CHECKING:
    from herringbone.backends.detached import DetachedBackend
    from herringbone.backends.ssh.agent.container_host import ImageIntake

_READ_BYTES = 1 << 20
# While somebody follows: a look at a row and at a log takes 0.2 ms.
_SHORTEST_PAUSE, _LONGEST_PAUSE, _SLOWER = 0.005, 0.1, 1.1


class Desk:
    """Answers over two descriptors; `home` is the work folder."""

    def __init__(self, home: Home, *, listen: int = 0, speak: int = 1) -> None:
        self._home = home
        self._in, self._out = listen, speak
        self._images: ImageIntake | None = None
        self._keepings: dict[str, DetachedBackend] = {}
        self._lock = MachineLock(home.path / "lock")
        self._myself = str(identity(os.getpid()))
        self._followed: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._logs: dict[int, tuple[Path, int]] = {}
        self._verbs: dict[str, Callable[[Message, bytes], Message]] = {
            "hello": self._hello,
            "survey": self._survey,
            "measure": self._measure,
            "lock": self._take_lock,
            "unlock": self._give_back,
            "owner": self._owner,
            "missing": self._missing,
            "code": self._take_code,
            "image": self._find_image,
            "load": self._take_image,
            "keep": self._keep,
            "start": self._start,
            "jobs": self._jobs,
            "follow": self._follow,
            "log": self._log,
            "stop": self._stop,
            "kill": self._kill,
            "forget": self._forget,
            "clean": self._clean,
        }

    def run(self) -> None:
        """Answer until the visitor hangs up."""
        unpacker = Unpacker()
        self._say({"ready": True})
        pause = _SHORTEST_PAUSE
        while True:
            following = bool(self._followed or self._logs)
            ready, _, _ = select.select([self._in], [], [], pause if following else None)
            if ready:
                chunk = os.read(self._in, _READ_BYTES)
                if not chunk:
                    return
                for message, payload in unpacker.feed(chunk):
                    self._answer(message, payload)
                pause = _SHORTEST_PAUSE
            pause = _SHORTEST_PAUSE if self._tell_news() else min(pause * _SLOWER, _LONGEST_PAUSE)

    def _answer(self, message: Message, payload: bytes) -> None:
        number = message.get("number")
        try:
            answer = self._verbs[message["ask"]](message, payload)
        except HerringboneError as error:
            answer = {"refused": str(error), "kind": type(error).__name__}
        except OSError as error:
            answer = {"refused": f"{error.strerror or error}: {error.filename or self._home.path}", "kind": "OSError"}
        self._say({"answer": number, **answer})

    def _say(self, message: Message, payload: bytes = b"") -> None:
        view = memoryview(pack(message, payload))
        while view:
            view = view[os.write(self._out, view) :]

    # What machine this is

    def _hello(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        from herringbone.backends.ssh.agent import host_facts

        self._home.make()
        return {"work": str(self._home.path), "now": time.time(), **host_facts.look(self._home.path)}

    def _survey(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        from herringbone.backends.ssh.agent import host_facts

        return host_facts.look_closely()

    def _measure(self, message: Message, _: bytes) -> Message:
        from herringbone.backends.ssh.agent import bandwidth

        return bandwidth.take_part(message, lambda port: self._say({"listening": message["number"], "port": port}))

    # Whose it is

    def _take_lock(self, message: Message, _: bytes) -> Message:
        claim = {name: message[name] for name in ("job", "client")}
        owner = self._lock.take(claim, holder=self._myself)
        return {} if owner is None else {"owner": {name: owner.get(name, "?") for name in ("job", "client")}}

    def _give_back(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        self._lock.give_back(self._myself)
        return {}

    def _owner(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        return {"owner": self._lock.held_by()}

    # What a host needs

    def _missing(self, message: Message, _: bytes) -> Message:
        """Say what of some code and data is not here yet, and make room for it."""
        code, data = code_folder(self._home) / f"{message['code']}.tar.gz", data_folder(self._home)
        for folder in (code.parent, data):
            folder.mkdir(exist_ok=True)
        missing = [digest for digest in message["data"] if not (data / digest).is_dir()]
        for digest in missing:
            self._partial(digest).mkdir(exist_ok=True)
        return {"code": not code.is_file(), "data": {digest: str(self._partial(digest)) for digest in missing}}

    def _take_code(self, message: Message, payload: bytes) -> Message:
        target = code_folder(self._home) / f"{message['digest']}.tar.gz"
        partial = target.with_name(f".{target.name}.partial")
        partial.write_bytes(payload)
        partial.replace(target)
        return {}

    def _keep(self, message: Message, _: bytes) -> Message:
        """Data has come whole: from now on it is there."""
        self._partial(message["digest"]).replace(data_folder(self._home) / message["digest"])
        return {}

    def _partial(self, digest: str) -> Path:
        return data_folder(self._home) / f".{digest}.partial"

    def _find_image(self, message: Message, _: bytes) -> Message:
        found = self._intake.find(message["name"])
        return {"id": None} if found is None else {"id": found.id, "is_ours": found.is_ours}

    def _take_image(self, message: Message, payload: bytes) -> Message:
        """A piece of an image, or with `wanted` its end."""
        if payload:
            self._intake.feed(payload)
        else:
            self._intake.finish(message["wanted"])
        return {}

    @property
    def _intake(self) -> ImageIntake:
        if self._images is None:
            from herringbone.backends.ssh.agent.container_host import ImageIntake

            self._images = ImageIntake()
        return self._images

    def _start(self, message: Message, _: bytes) -> Message:
        order = msgspec.convert(message["order"], StartOrder)
        hosting = self._hosting_of("container" if order.image else "host", order)
        from herringbone.planning.plan import parse_plan

        plan = parse_plan(order.plan)
        hosting.submit(plan)
        controller = JobIndex(self._home.index).get(plan.job_name).controller
        self._lock.hand_over(self._myself, str(controller))
        return {}

    def _hosting_of(self, kind: str, order: StartOrder | None = None) -> DetachedBackend:
        """Return who starts, stops and buries hosts of a kind: a backend's name, as the index has it."""
        if kind == Hosting.name:
            return Hosting(self._home, order)
        from herringbone.backends.ssh.agent.container_host import ContainerHosting

        return ContainerHosting(self._home, order)

    # How it is with the host

    def _keeping(self, job: str) -> DetachedBackend:
        if job not in self._keepings:
            self._keepings[job] = self._hosting_of(JobIndex(self._home.index).get(job).backend)
        return self._keepings[job]

    def _jobs(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        found = []
        for record in JobIndex(self._home.index).all():
            with contextlib.suppress(OSError, ValueError):
                machines = json.loads((self._home.job(record.name).path / MACHINES).read_text())
                row = self._hosting_of(record.backend).describe(record.name)
                found.append({"row": asdict(row), "machines": machines})
        return {"jobs": found}

    def _follow(self, message: Message, _: bytes) -> Message:
        self._keeping(message["job"])  # refuses a job that is not there
        self._followed[message["job"]] = message["host"]
        self._told.pop(message["job"], None)
        return {}

    def _log(self, message: Message, _: bytes) -> Message:
        path = self._home.job(message["job"]).log(message["host"])
        self._logs[message["number"]] = (path, message["offset"])
        return {}

    def _stop(self, message: Message, _: bytes) -> Message:
        self._keeping(message["job"]).stop(message["job"], message["grace"])
        return {}

    def _kill(self, message: Message, _: bytes) -> Message:
        self._keeping(message["job"]).kill(message["job"])
        return {}

    def _forget(self, message: Message, _: bytes) -> Message:
        """End a job and leave nothing of it."""
        import shutil

        self._keeping(message["job"]).kill(message["job"])
        JobIndex(self._home.index).remove(message["job"])
        shutil.rmtree(self._home.job(message["job"]).path, ignore_errors=True)
        return {}

    def _clean(self, message: Message, _: bytes) -> Message:
        """Remove what is old; nobody can take the machine meanwhile."""
        from herringbone.backends.ssh.agent.cleanup import clean

        for record in JobIndex(self._home.index).all():
            # Writes down the end of those whose controller was killed.
            self._hosting_of(record.backend).describe(record.name)
        owner = self._lock.take({"job": "herringbone hosts clean", "client": message["client"]}, holder=self._myself)
        try:
            leftovers = clean(
                self._home,
                older=message["older"],
                now=time.time(),
                idle=owner is None,
                environment=Path(sys.prefix),
                dry=message["dry"],
            )
        finally:
            self._lock.give_back(self._myself)
        return {"leftovers": msgspec.to_builtins(leftovers), "runs": "" if owner is None else owner["job"]}

    def _tell_news(self) -> bool:
        """Say what has changed; return whether anything has."""
        news = False
        # Rows first: what a host wrote before its end must not seem to come after it.
        rows = [self._row_of(name, host) for name, host in self._followed.items()]
        for number in list(self._logs):
            news = self._tell_log(number) or news
        for row in rows:
            name, text = row["row"]["name"], json.dumps(row)
            if self._told.get(name) != text:
                self._told[name] = text
                self._say({**row, "now": time.time()})
                news = True
            if row["row"]["status"] in TERMINAL:
                del self._followed[name]
        return news

    def _row_of(self, name: str, host: str) -> dict[str, Any]:
        record: JobRecord = self._keeping(name).describe(name)
        row = {**asdict(record), "plan": "", "work": str(self._home.path)}
        if not record.done:
            return {"row": row}
        failure_record = None
        with contextlib.suppress(OSError):
            failure_record = Path(Paths(self._home.job(name).host(host)).failure_record).read_text(errors="replace")
        return {"row": row, "record": failure_record, "left": left_behind(self._home, name, host)}

    def _tell_log(self, number: int) -> bool:
        path, offset = self._logs[number]
        news = False
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(_READ_BYTES):
                self._say({"log": number}, chunk)
                offset += len(chunk)
                news = True
        self._logs[number] = (path, offset)
        return news


def main() -> None:
    Desk(Home(Path(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
