"""`python -m herringbone.backends.ssh.agent WORK`: serves one connection on a machine, with the files of a work folder.

    [1] read requests            {"ask": "claim", "number": 3, ...}
    [2] answer each at once      {"answer": 3, ...} or {"answer": 3, "refused": why}
    [3] publish subscriptions    {"row": job, ...} and {"log": number} with bytes, whenever they change
    [4] end of input             the client has closed the connection: the agent ends, the hosts that it started run on

One thread does all of this, so no member needs a lock.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.backends.ssh.agent.jobs import MachineJobs
from herringbone.backends.ssh.agent.line import SILENCE_SECONDS, MachineLine
from herringbone.backends.ssh.agent.messages import Message, Unpacker, pack
from herringbone.backends.ssh.agent.store import FileStore, ImageStore
from herringbone.backends.ssh.agent.subscriptions import Subscriptions
from herringbone.records.home import Home
from herringbone_contract.errors import HerringboneError

if TYPE_CHECKING:
    from herringbone.protocols.backend import Answers

_READ_BYTES = 1 << 20
# Pauses between two looks at the subscriptions: a look at a row and at a log takes 0.2 ms.
_SHORTEST_PAUSE, _LONGEST_PAUSE, _SLOWER = 0.005, 0.1, 1.1


class Agent:
    """Answers requests over two descriptors; `home` is the work folder."""

    def __init__(self, home: Home, *, input_fd: int = 0, output_fd: int = 1) -> None:
        self._home = home
        self._input, self._output = input_fd, output_fd
        self._line = MachineLine(home)
        self._jobs = MachineJobs(home, self._line)
        self._subscriptions = Subscriptions(home, self._jobs.describe, self._send)
        # Requests of this connection: one that no controller has taken yet ends with it.
        self._asked: list[Answers] = []
        self._verbs: dict[str, Callable[[Message, bytes], Message]] = {
            "facts": self._facts,
            "detailed_facts": self._detailed_facts,
            "device_rates": self._device_rates,
            "measure": self._measure,
            "examine": self._examine,
            "owner": self._owner,
            "follow": self._follow,
            "log": self._follow_log,
            "request": self._request,
            **self._line.verbs,
            **FileStore(home).verbs,
            **ImageStore().verbs,
            **self._jobs.verbs,
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

    def _examine(self, message: Message, _: bytes) -> Message:
        from herringbone.backends.ssh.agent.examination import examined

        seconds, interface = message["seconds"], message["interface"]
        return {"report": examined(message["request"], interface=interface, seconds=seconds)}

    def _measure(self, message: Message, _: bytes) -> Message:
        from herringbone.backends.ssh.agent import bandwidth

        # The sender needs the listener's port while the listener still waits, so the port travels before the answer.
        return bandwidth.measure(message, lambda port: self._send({"listening": message["number"], "port": port}))

    def _owner(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        return {"owner": self._line.lock.owner()}

    # Rows and files that the client follows

    def _follow(self, message: Message, _: bytes) -> Message:
        # Raises `JobNotFoundError` for an unknown job now, as an answer to this request.
        self._jobs.backend_of(message["job"])
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

    def _request(self, message: Message, _: bytes) -> Message:
        """Hand a client's request to the job's controller, and send the events of the host from now on."""
        events = self._home.job(message["job"]).events(message["host"])
        offset = events.stat().st_size if events.exists() else 0
        self._asked.append(self._jobs.backend_of(message["job"]).ask(message["job"], message["request"]))
        self._subscriptions.follow_log(message["number"], events, offset)
        return {}


def main() -> None:
    """Serve the connection on standard input and output."""
    Agent(Home(Path(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
