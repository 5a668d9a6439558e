"""`python -m herringbone.backends.ssh.waiter JOB < config`: holds a job's place in the lines of its machines.

    a thread a machine     connect, enter the line, look from time to time; connect again where that breaks
    this thread            when enough machines are ready at once: take them all, or give all back and wait on
    granted                the client's part of the submission, over the same connections; then this process ends
    SIGTERM                leave the lines: the job is Stopped
    max_wait               leave the lines: Stopped, MaxWaitTimeExceeded

A job takes its machines when all of them are ready, so it never has one while it waits for another. All lines have
their jobs in one order (`slots.line`), so the first job of all gets what becomes free, and two jobs never wait for each
other. A ticket counts while this process is connected. A place does not depend on that: it is the time of arrival.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from herringbone.backends.ssh.machines.inventory import Machine, choose, inventory_path, read_inventory
from herringbone.backends.ssh.start.claims import Granted
from herringbone.backends.ssh.start.line import candidates, fitting, place_of, request_of
from herringbone.backends.ssh.start.upload import PackedCode
from herringbone.backends.waiter import SIGNALS, JobWaiter, pause_after
from herringbone.plan.plan import parse_plan
from herringbone.slots.line import Waiting
from herringbone.slots.places import QUEUE
from herringbone_contract.errors import HerringboneError, HostError, LaunchError

if TYPE_CHECKING:
    from herringbone.backends.ssh.backend import SshBackend
    from herringbone.backends.ssh.transport.connection import Connection
    from herringbone.backends.ssh.transport.protocol import Transport
    from herringbone.plan.plan import JobPlan
    from herringbone.records.home import Home

# A look answers in milliseconds; a connection that is cut off without a word must not hold up the take of others.
_LOOK_SECONDS = 20.0
# Far less than the silence after which a machine takes a waiter for dead (`agent.line.SILENCE_SECONDS`).
_LONGEST_PAUSE = 15.0
# The threads wake this one after each answer.
_LONGEST_SLEEP = 3600.0
_RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class MachineWaiterConfig(TypedDict):
    """One waiting job, as JSON on the waiter's standard input, because the plan may hold secrets.

    `mark` and `arrival` are the job's place in every line, `code` and `digest` its packed code. `deadline` is in
    seconds since 1970, None without `max_wait`.
    """

    job: str
    plan: dict[str, Any]
    code: str
    digest: str
    mark: str
    arrival: float
    deadline: float | None


class MachinePlace(threading.Thread):
    """The place in one machine's line, kept by a thread; `changed` is called after each answer.

    `worst` returns the job's worst number and turn in all lines.
    """

    def __init__(
        self,
        machine: Machine,
        transport: Transport[Machine],
        request: Mapping[str, Any],
        *,
        worst: Callable[[], tuple[int, float]],
        changed: Callable[[], None],
    ) -> None:
        super().__init__(daemon=True, name=machine.name)
        self.machine = machine
        # The last answer of the machine, None before the first and while it is silent, for the reason in `trouble`.
        self.look: dict[str, Any] | None = None
        self.trouble = ""
        # Why the machine can never serve the job.
        self.never = ""
        # The error that ended the thread. The waiter raises it, because nobody else looks at this machine's line.
        self.error: Exception | None = None
        self._transport, self._request = transport, dict(request)
        self._worst, self._changed = worst, changed
        # Of the connection, which the thread and `ask` use in turns.
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._closed = threading.Event()

    def run(self) -> None:
        failures = 0
        while not self._closed.is_set() and not self.never:
            begin = time.monotonic()
            try:
                with self._lock:
                    if self._closed.is_set():
                        return
                    self.look = self._look()
                failures, self.trouble = 0, ""
                place, rank = (1, 1) if self.look is None else (self.look["place"], self.look["rank"])
                pause = min(_LONGEST_PAUSE, pause_after(Waiting(place), time.monotonic() - begin, rank))
            except HostError as error:
                self._disconnected(error)
                pause = _RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)]
                failures += 1
            except Exception as error:  # noqa: BLE001 - a thread that just ends would leave the job pending for ever
                self.error = error
                self._changed()
                return
            self._changed()
            self._closed.wait(pause)

    def ask(self, verb: str) -> dict[str, Any]:
        """Ask the machine to `take` or to `give_back`. Raises `HostError`; the thread then enters the line again."""
        with self._lock:
            try:
                if self._connection is None:
                    raise HostError(f"{self.machine.name}: {self.trouble or 'it is not connected'}")
                return self._connection.ask({"ask": verb}, timeout=_LOOK_SECONDS)
            except HostError as error:
                self._disconnected(error)
                raise

    def hand_over(self) -> Connection:
        """End the thread's work and return the connection, which holds the claim. Raises `HostError` if it broke."""
        self._closed.set()
        with self._lock:
            if self._connection is None:
                raise HostError(
                    f"{self.machine.name}: the connection broke when the job had its turn: {self.trouble}; submit the"
                    " job again"
                )
            connection, self._connection = self._connection, None
            return connection

    def close(self) -> None:
        """Leave the line."""
        self._closed.set()
        # Without the lock: the thread may wait for a machine's environment. A closed connection ends its request.
        connection = self._connection
        if connection is not None:
            connection.disconnect()

    def _look(self) -> dict[str, Any] | None:
        if self._connection is None:
            self._connection = self._transport.connect(self.machine)
            answer = self._connection.ask({"ask": "enter", **self._request})
            self.never = answer.get("never", "")
            if self.never:
                return None
        answer = self._connection.ask({"ask": "look", "worst": self._worst()}, timeout=_LOOK_SECONDS)
        if "lost" in answer:
            raise HostError(f"{self.machine.name}: the line was left after a silence")
        return answer

    def _disconnected(self, error: HostError) -> None:
        self.trouble = str(error).removeprefix(f"{self.machine.name}: ")
        self.look = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(gracefully=False)


class MachineWaiter(JobWaiter):
    """Holds one job in the lines of machines: `MachineWaiter(config, backend).run()`."""

    def __init__(self, config: MachineWaiterConfig, backend: SshBackend) -> None:
        super().__init__(config["job"], config["deadline"])
        self._config, self._backend = config, backend
        self._plan: JobPlan = parse_plan(config["plan"])
        inventory = read_inventory(inventory_path(self._plan))
        self._inventory = fitting(self._plan, inventory)
        # The machines that the job was granted, by host.
        self._machines: dict[str, Machine] = {}
        self._shown: dict[str, Any] = {}
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        place = {"mark": config["mark"], "arrival": config["arrival"]}
        self._places = {
            machine.name: MachinePlace(
                machine,
                backend.transport,
                {**request_of(self._plan, machine), **place},
                worst=self._worst,
                changed=self._wake_up,
            )
            for machine in candidates(self._plan, self._inventory)
        }

    @property
    def _home(self) -> Home:
        return self._backend.home

    def _enter(self) -> None:
        for place in self._places.values():
            place.start()

    def _take(self) -> float | None:
        for place in self._places.values():
            if place.error is not None:
                raise place.error
        if self._take_all():
            return None
        self._show()
        return _LONGEST_SLEEP

    def _take_all(self) -> bool:
        """Take a machine for each host if enough are ready; otherwise take none."""
        never = {name: place.never for name, place in self._places.items() if place.never}
        inventory = fitting(self._plan, self._inventory, never)
        waiting = {
            name: "not ready" for name, place in self._places.items() if not (place.look and place.look["ready"])
        }
        try:
            machines = choose(self._plan.hosts, inventory, busy=waiting)
        except LaunchError:
            return False
        taken: list[MachinePlace] = []
        for name in sorted(machine.name for machine in machines.values()):
            place = self._places[name]
            with contextlib.suppress(HostError):
                if "busy" not in place.ask("take"):
                    taken.append(place)
                    continue
            # Somebody with a larger priority has just arrived, or the machine is gone.
            place.look = None
            for other in taken:
                with contextlib.suppress(HostError):
                    other.ask("give_back")
            return False
        self._machines = machines
        return True

    def _start(self) -> None:
        chosen = {machine.name for machine in self._machines.values()}
        connections = {name: self._places[name].hand_over() for name in chosen}
        for name in set(self._places) - chosen:
            self._places[name].close()
        code = PackedCode(digest=self._config["digest"], path=Path(self._config["code"]))
        self._backend.launch(self._plan, Granted(self._machines, connections, code))
        if any(number in signal.sigpending() for number in SIGNALS):
            self._backend.stop(self._job)

    def _show(self) -> None:
        """Write the place into the row, for `ls` and all others, if it has changed."""
        from herringbone.records.index import JobIndex

        looks = {name: look for name, place in self._places.items() if (look := place.look) is not None}
        troubles = {name: place.trouble for name, place in self._places.items() if place.trouble}
        shown = place_of(looks, troubles, len(self._plan.hosts))
        if shown != self._shown:
            # A row that is locked now is written after the next look.
            with contextlib.suppress(HerringboneError):
                JobIndex(self._home.index).update(self._job, unless_done=True, facts=json.dumps({QUEUE: shown}))
                self._shown = shown

    def _worst(self) -> tuple[int, float]:
        looks = [look for place in self._places.values() if (look := place.look) is not None]
        return max((look["number"] for look in looks), default=0), max((look["turn"] for look in looks), default=0.0)

    def _leave(self) -> None:
        for place in self._places.values():
            place.close()

    def _wake_up(self) -> None:
        # A full pipe wakes as well.
        with contextlib.suppress(OSError):
            os.write(self._wake, b"\0")


def main() -> None:
    text = sys.stdin.buffer.read()
    # Without a config, the client could not prepare the job, or was killed.
    if text:
        from herringbone.backends.ssh.backend import make_backend

        MachineWaiter(json.loads(text), make_backend()).run()


if __name__ == "__main__":
    main()
