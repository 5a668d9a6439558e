"""Choose and claim the machines of a job, and hold the connections that keep the claims."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from herringbone.backends.ssh.agent.messages import Message
from herringbone.backends.ssh.machines.inventory import Inventory, Machine, choose
from herringbone.backends.ssh.start.line import fitting, request_of
from herringbone.backends.ssh.start.upload import PackedCode
from herringbone.backends.ssh.transport.connection import Connection
from herringbone.backends.ssh.transport.protocol import Transport, in_parallel
from herringbone.plan.plan import JobPlan
from herringbone_contract.errors import HostError, InputError, LaunchError

# A controller of this job's last attempt may take this long to end and to free its lock.
_OWN_LOCK_SECONDS, _POLL_SECONDS = 10.0, 0.1
_TWIN = (
    "is the same machine as another entry of the inventory (two names or two ports?), or shares its work folder with "
    "one (one home for all machines?); remove one of them, or give each a `work_folder` of its own"
)


@dataclass(frozen=True, slots=True)
class Granted:
    """The start of a job that has waited in line.

    `machines` maps hosts to machines, `connections` those machines, by name, to the open connections that hold the
    claims. `code` is the code of the submission.
    """

    machines: Mapping[str, Machine]
    connections: Mapping[str, Connection]
    code: PackedCode


class Claims:
    """The machines of one job: `machines` by host, and the open connections to all that were tried.

    `unavailable` maps machines that a retry must avoid to the reasons, None for a first attempt; a retry may have fewer
    hosts, which `plan` then says. With `granted`, the machines are chosen and claimed. `spent` are the seconds of the
    job's limit in time that are over.
    """

    def __init__(
        self,
        plan: JobPlan,
        inventory: Inventory,
        transport: Transport[Machine],
        *,
        unavailable: Mapping[str, str] | None = None,
        granted: Granted | None = None,
        spent: float = 0.0,
    ) -> None:
        self.plan, self._transport, self._unavailable, self._spent = plan, transport, unavailable, spent
        self._inventory, self._all_hosts = fitting(plan, inventory), plan.hosts
        self.is_granted = granted is not None
        self.machines: dict[str, Machine] = {} if granted is None else dict(granted.machines)
        # By the machine's name, also those that turned out to be busy.
        self._connections: dict[str, Connection] = {} if granted is None else dict(granted.connections)
        # Machines that can never serve the job, with the reasons.
        self._never: dict[str, str] = {}

    def connect(self) -> None:
        """Choose machines, and start to connect to them."""
        if not self.is_granted:
            self._connect(self._choose({}))

    def claim_all(self) -> None:
        """Claim a machine for each host; replace a machine that another job has by the next free one."""
        if self.is_granted:
            return
        busy: dict[str, str] = {}
        locked: set[str] = set()
        while True:
            unlocked = [machine for machine in self.machines.values() if machine.name not in locked]
            answers = in_parallel(self._claim, unlocked)
            for machine, answer in zip(unlocked, answers, strict=True):
                if "never" in answer:
                    self._never[machine.name] = answer["never"]
                    self._inventory = fitting(self.plan, self._inventory, self._never)
                elif why := answer.get("lost") or answer.get("busy"):
                    # Only a retry may find an earlier attempt of its own.
                    is_twin = self._unavailable is None and self.plan.job_name in answer.get("jobs", [])
                    busy[machine.name] = _TWIN if is_twin else why
                else:
                    locked.add(machine.name)
            if all(machine.name in locked for machine in self.machines.values()):
                break
            # Ends: `busy` grows in every round, and `choose` raises when too few machines remain.
            self._connect(self._choose(busy))
        # A later choice may not contain a machine that was locked for an earlier one; others may need it.
        for name in locked - {machine.name for machine in self.machines.values()}:
            self._connections[name].ask({"ask": "leave"})

    def connection(self, host: str) -> Connection:
        """Return the connection to the machine of a host."""
        return self._connections[self.machines[host].name]

    def close_all_but(self, keep_open: Collection[str]) -> None:
        """Close the connections to all other machines than these."""
        closing = [connection for name, connection in self._connections.items() if name not in keep_open]
        in_parallel(lambda connection: connection.close(), closing)

    def _choose(self, busy: Mapping[str, str]) -> dict[str, Machine]:
        """Choose a machine for each host; for a retry, for as many hosts as there are machines for."""
        if self._unavailable is None:
            return choose(self.plan.hosts, self._inventory, busy=busy)
        busy = {**self._unavailable, **busy}
        for count in (len(self._all_hosts), *self.plan.fewer_hosts):
            try:
                chosen = choose(self._all_hosts[:count], self._inventory, busy=busy)
            except (LaunchError, InputError):
                continue
            self.plan = msgspec.structs.replace(self.plan, hosts=self._all_hosts[:count])
            return chosen
        # Raises the error that names the unavailable machines.
        return choose(self._all_hosts, self._inventory, busy=busy)

    def _connect(self, machines: Mapping[str, Machine]) -> None:
        """Start to connect to each machine, without waiting for any."""
        for machine in machines.values():
            if machine.name not in self._connections:
                self._connections[machine.name] = self._transport.connect(machine)
        self.machines = dict(machines)

    def _claim(self, machine: Machine) -> Message:
        """Claim what a host needs of a machine; {"lost": why} when a retry can do without the machine."""
        claim = {"ask": "claim", **request_of(self.plan, machine)}
        # Others in the line of the machine are told until when it may be taken.
        claim["max_run"] -= self._spent
        deadline = time.monotonic() + _OWN_LOCK_SECONDS
        try:
            while True:
                answer = self._connections[machine.name].ask(claim)
                # If this very job has the machine, its last attempt is ending there and frees it soon.
                ended = self._unavailable is None or time.monotonic() > deadline
                if claim["job"] not in answer.get("jobs", []) or ended:
                    return answer
                time.sleep(_POLL_SECONDS)
        except HostError as error:
            if self._unavailable is None:
                raise
            return {"lost": str(error).removeprefix(f"{machine.name}: ")}
