"""The way from a plan to hosts that run: machines locked, code and data there, a host started on each.

Until the last step nothing runs anywhere, and what was locked is free again as soon as the visits end.
"""

from __future__ import annotations

import getpass
import os
import platform
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from herringbone.backends.detached import stop_grace
from herringbone.backends.ssh.agent.host_config import Delivery, StartOrder, plan_to_send
from herringbone.backends.ssh.agent.messages import Message
from herringbone.backends.ssh.connection import Visit
from herringbone.backends.ssh.host_selection import choose, runtime_of
from herringbone.backends.ssh.inventory import Inventory, Machine
from herringbone.backends.ssh.rendezvous import Place, control_of, place_of
from herringbone.backends.ssh.transport import Road
from herringbone.backends.ssh.upload import Code, Parcel, code_of, digest_of, parcels_of
from herringbone.backends.ssh.versions import disagreements
from herringbone.planning.plan import JobPlan
from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import HerringboneError, HostError, InputError, LaunchError

if TYPE_CHECKING:
    from herringbone.engine.client import Engine

_SECRET_BYTES = 32
_THREADS = 32
_OWN_SECONDS, _POLL_SECONDS = 10.0, 0.1
# Settings of the supervisor's that a user may have in his own environment.
_PASSED_ON = (HostVariable.HEARTBEAT, HostVariable.JOIN_TIMEOUT)
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What one more attempt needs beside the plan.

    `name` is what machines call the job in this attempt, `code` what all attempts run, `checkpoints` a folder with what
    the earlier ones left, None for none. `without` are machines that it cannot have, each with why.
    """

    name: str
    code: Code
    checkpoints: Path | None
    without: Mapping[str, str]


class Submission:
    """One job on its way; `scratch` is a folder here for its packed code, `environ` the client's environment.

    `find` finds this machine's container engine, where machines run containers. With `again`, a machine that does not
    answer is one that cannot be had, and fewer hosts may have to do.
    """

    def __init__(
        self,
        plan: JobPlan,
        inventory: Inventory,
        road: Road[Machine],
        *,
        scratch: Path,
        environ: Mapping[str, str],
        find: Callable[[], Engine],
        again: Again | None = None,
    ) -> None:
        self._plan, self._inventory, self._road = plan, inventory, road
        self._scratch, self._environ, self._find = scratch, environ, find
        self._have_gpus = False
        self._again = again
        self._all_hosts = plan.hosts
        self._name = plan.job_name if again is None else again.name
        self.code: Code | None = None if again is None else again.code
        self._visits: dict[str, Visit] = {}
        self._machines: dict[str, Machine] = {}
        self._places: dict[str, Place] = {}

    def run(self) -> dict[str, tuple[Machine, Visit]]:
        """Start all hosts; return which machine plays which, each with the visit to it, for who follows the job.

        Raises `HostError` or `LaunchError`, and leaves nothing running.
        """
        kept: set[str] = set()
        with ExitStack() as stack:
            stack.callback(lambda: self._hang_up(kept))
            # The machines take their time to answer: what is to be sent is looked at meanwhile.
            self._open(self._choose({}))
            if self.code is None:
                assert self._plan.source is not None
                self.code = code_of(self._plan.source, self._scratch, but_not=self._scratch.parent)
            code = self.code
            deliveries, parcels = parcels_of(self._plan.channels, self._inventory.shared)
            checkpoints = self._checkpoints()
            if checkpoints is not None:
                parcels[checkpoints.digest] = checkpoints
            self._lock()
            self._compare()
            if self._again is not None:
                # Of who began this very attempt, and was killed over it.
                self._at_once(self._forget, self._machines)
            image = self._provide_image()
            self._at_once(lambda host: self._send(host, code, parcels), self._machines)
            self._start(deliveries, image, checkpoints)
            kept.update(machine.name for machine in self._machines.values())
        return {host: (machine, self._visit(host)) for host, machine in self._machines.items()}

    def _choose(self, busy: Mapping[str, str]) -> dict[str, Machine]:
        """Choose a machine for each host; for one more attempt, for as many hosts as there are machines for."""
        if self._again is None:
            return choose(self._plan.hosts, self._inventory, busy=busy)
        busy = {**self._again.without, **busy}
        for count in (len(self._all_hosts), *self._plan.fewer_hosts):
            try:
                chosen = choose(self._all_hosts[:count], self._inventory, busy=busy)
            except (LaunchError, InputError):
                continue
            self._plan = msgspec.structs.replace(self._plan, hosts=self._all_hosts[:count])
            return chosen
        return choose(self._all_hosts, self._inventory, busy=busy)

    def _checkpoints(self) -> Parcel | None:
        folder = None if self._again is None else self._again.checkpoints
        return None if folder is None else Parcel(digest=digest_of(folder, "checkpoints"), path=folder)

    def _open(self, machines: Mapping[str, Machine]) -> None:
        """Begin a visit to each machine, without waiting for any."""
        for machine in machines.values():
            if machine.name not in self._visits:
                self._visits[machine.name] = self._road.visit(machine)
        self._machines = dict(machines)

    def _lock(self) -> None:
        """Lock a machine for each host; one that another job has is left out, and the next free one taken."""
        busy: dict[str, str] = {}
        locked: set[str] = set()
        claim = {"ask": "lock", "job": self._plan.job_name, "client": f"{getpass.getuser()}@{platform.node()}"}
        while True:
            wanted = [machine for machine in self._machines.values() if machine.name not in locked]
            answers = self._at_once(lambda machine: self._claim(machine, claim), wanted)
            for machine, answer in zip(wanted, answers, strict=True):
                if "lost" in answer:
                    busy[machine.name] = answer["lost"]
                elif owner := answer.get("owner"):
                    busy[machine.name] = f"runs {owner['job']} of {owner['client']}"
                else:
                    locked.add(machine.name)
            if all(machine.name in locked for machine in self._machines.values()):
                break
            self._open(self._choose(busy))
        # A choice without the busy ones may have left out one that was locked before.
        for name in locked - {machine.name for machine in self._machines.values()}:
            self._visits[name].ask({"ask": "unlock"})

    def _claim(self, machine: Machine, claim: Message) -> Message:
        """Ask a machine for its lock, and return the answer; {"lost": why} where one may do without it."""
        deadline = time.monotonic() + _OWN_SECONDS
        try:
            while True:
                answer = self._visits[machine.name].ask(claim)
                owner = answer.get("owner")
                # What is left of our own last attempt goes by itself.
                if owner is None or owner["job"] != claim["job"] or time.monotonic() > deadline:
                    return answer
                time.sleep(_POLL_SECONDS)
        except HostError as error:
            if self._again is None:
                raise
            return {"lost": str(error).removeprefix(f"{machine.name}: ")}

    def _compare(self) -> None:
        """Ask each machine what it has: none may lack what the inventory promises, or differ from its group."""
        answers = self._at_once(lambda host: self._visit(host).ask({"ask": "hello"}), self._machines)
        hellos = dict(zip(self._machines, answers, strict=True))
        if found := disagreements(self._plan.hosts, self._machines, hellos):
            raise HostError("the machines are not what the job needs:\n  " + "\n  ".join(found))
        self._places = {host: place_of(machine, hellos[host]) for host, machine in self._machines.items()}
        self._have_gpus = any(hello["gpus"] for hello in answers)

    def _provide_image(self) -> str | None:
        """Return the id of the image that all machines have now, None where hosts are processes."""
        if runtime_of(self._machines.values()) != "docker":
            return None
        from herringbone.backends.docker.review import check_image
        from herringbone.backends.ssh.images import provide
        from herringbone.jobs.console import Console

        visits = [self._visit(host) for host in self._machines]
        image = provide(self._plan, visits, self._find, gpus=self._have_gpus, say=Console(sys.stderr).say)
        check_image(self._plan, image)
        return image.id

    def _send(self, host: str, code: Code, parcels: Mapping[str, Parcel]) -> None:
        """Bring to a machine what it does not have."""
        visit, machine = self._visit(host), self._machines[host]
        missing = visit.ask({"ask": "missing", "code": code.digest, "data": sorted(parcels)})
        if missing["code"]:
            visit.ask({"ask": "code", "digest": code.digest}, code.path.read_bytes())
        for digest, there in missing["data"].items():
            self._road.send(machine, parcels[digest].path, there)
            visit.ask({"ask": "keep", "digest": digest})

    def _start(self, deliveries: Mapping[str, Delivery], image: str | None, checkpoints: Parcel | None) -> None:
        assert self.code is not None
        code = self.code
        first = next(iter(self._machines))
        several = len(self._machines) > 1
        key = os.urandom(_SECRET_BYTES).hex() if several else None
        control = control_of(self._places[first]) if several else None
        settings = {name: self._environ[name] for name in _PASSED_ON if name in self._environ}
        machines = {host: msgspec.to_builtins(machine) for host, machine in self._machines.items()}
        plan = plan_to_send(msgspec.structs.replace(self._plan, job_name=self._name))

        def start(host: str) -> Message:
            order = StartOrder(
                plan=plan,
                host=host,
                control=control,
                key=key,
                code=code.digest,
                data=dict(deliveries),
                interface=self._places[host].interface,
                machines=machines,
                settings={**settings, HostVariable.STOP_GRACE: f"{stop_grace():g}"},
                image=image,
                checkpoints=None if checkpoints is None else checkpoints.digest,
            )
            return self._visit(host).ask({"ask": "start", "order": msgspec.to_builtins(order)})

        try:
            self._at_once(start, self._machines)
        except BaseException:
            self._at_once(self._forget, self._machines)
            raise

    def _forget(self, host: str) -> None:
        with suppress(HerringboneError):
            self._visit(host).ask({"ask": "forget", "job": self._name})

    def _visit(self, host: str) -> Visit:
        return self._visits[self._machines[host].name]

    def _hang_up(self, but_not: Collection[str]) -> None:
        self._at_once(lambda visit: visit.close(), [each for name, each in self._visits.items() if name not in but_not])

    @staticmethod
    def _at_once(call: Callable[[_Item], Any], items: Sequence[_Item] | Mapping[_Item, Any]) -> list[Any]:
        """Make a call for each item, side by side; when all have ended, raise all that went wrong as one error."""
        with ThreadPoolExecutor(_THREADS) as pool:
            calls = [pool.submit(call, item) for item in items]
        errors = [error for each in calls if (error := each.exception()) is not None]
        if errors and len(errors) > 1 and all(isinstance(error, HostError) for error in errors):
            raise HostError("\n  ".join([f"{len(errors)} machines:", *map(str, errors)]))
        if errors:
            raise errors[0]
        return [each.result() for each in calls]
