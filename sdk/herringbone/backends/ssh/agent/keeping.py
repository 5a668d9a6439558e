"""The keepers of jobs on this machine, which retry their jobs without a client: start one, and read what it says.

jobs/JOB/permit        how long ranks may run (`controller.permit`)
jobs/JOB/attempts.json the newest attempt that the job's machines agree on, and the keeper's process
jobs/JOB/stopping      a client has asked the job to stop
jobs/JOB/observed      a client has asked just now what the machines agree on, and could go on without them
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.backends.ssh.agent.messages import Message
from herringbone.backends.ssh.attempts.current import split_attempt
from herringbone.records.index import JobIndex
from herringbone.system.processes import is_alive
from herringbone_contract.errors import HostError

if TYPE_CHECKING:
    from herringbone.records.home import Home

ATTEMPTS, STOPPING, OBSERVED = "attempts.json", "stopping", "observed"
_KEEPER = "herringbone.backends.ssh.keepers"


class Keepers:
    """Answers the requests about keepers; `home` is the work folder."""

    def __init__(self, home: Home) -> None:
        self._home = home
        # The keeper that this connection has started, until it has its config.
        self._started: subprocess.Popen[bytes] | None = None

    @property
    def verbs(self) -> dict[str, Callable[[Message, bytes], Message]]:
        return {"await_keeper": self._start, "attempts": self._attempts}

    def hand_over(self, config: Any) -> None:
        """Give the started keeper its config, and let it go on when this connection ends."""
        assert self._started is not None
        assert self._started.stdin is not None
        with self._started.stdin as pipe:
            pipe.write(json.dumps(config).encode())
        self._started.returncode = 0

    def last_of(self, name: str) -> list[str]:
        """Return the attempts that are not over of an attempt's job, whose keeper starts no further one.

        Of a job without a keeper the attempt itself.
        """
        job, _ = split_attempt(name)
        if not self._file(job, ATTEMPTS).exists():
            return [name]
        self._file(job, STOPPING).touch()
        return [
            row.name for row in JobIndex(self._home.index).all() if split_attempt(row.name)[0] == job and not row.done
        ]

    def _start(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        """Start a keeper, and return the port on which it listens. Without a config it ends with this connection."""
        command = [sys.executable, "-m", _KEEPER, str(self._home.path)]
        with (self._home.path / "keepers.log").open("ab") as log:
            self._started = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert self._started.stdout is not None
        with self._started.stdout as pipe:
            line = pipe.readline()
        if not line:
            raise HostError("none of the ports 7590 to 7689 is free for connections of the other machines")
        return {"port": int(line)}

    def members(self, name: str) -> list[str]:
        """Return the machines that retry an attempt's job by themselves."""
        value = self._attempts({"job": name}, b"").get("value", {})
        return list(value.get("attempt", {}).get("members", ()))

    def keeps(self, name: str) -> bool:
        """Report whether an attempt's job has a keeper here that runs."""
        return bool(self._attempts({"job": name}, b"")["alive"])

    def _attempts(self, message: Message, _: bytes) -> Message:
        job = split_attempt(message["job"])[0]
        try:
            state: dict[str, Any] = json.loads(self._file(job, ATTEMPTS).read_text())
        except (OSError, ValueError):
            return {"alive": False}
        if message.get("may_start"):
            self._file(job, OBSERVED).touch()
        known = [row.name for row in JobIndex(self._home.index).all() if split_attempt(row.name)[0] == job]
        return {**state, "alive": is_alive(state["keeper"]), "known": known}

    def _file(self, job: str, name: str) -> Path:
        return self._home.job(job).path / name
