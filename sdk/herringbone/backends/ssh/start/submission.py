"""Submit a job to machines: from a plan to hosts that run.

    [1] open connections to the chosen machines; pack the code and digest the data meanwhile
    [2] claim a machine, or GPUs of it, for each host; a busy one is replaced by the next free one
    [3] compare the machines' facts with the inventory and with each other
    [4] send the image, the code and the data that a machine lacks
    [5] start the hosts

Before step 5 no machine runs anything of the job, and closing the connections frees the claims. A job that has waited
in line (`waiter`) begins with the machines that it was granted, and the code as it was at the submission.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from herringbone.aws.location import is_s3
from herringbone.backends.detached import stop_grace
from herringbone.backends.on_s3 import machine_s3
from herringbone.backends.review.checks import checkpoint_folder
from herringbone.backends.ssh.agent.host_config import ChannelLocation, HostConfig
from herringbone.backends.ssh.agent.messages import Message
from herringbone.backends.ssh.machines.facts import HostAddress, address_of, control_address, disagreements
from herringbone.backends.ssh.machines.inventory import Inventory, Machine, choose, runtime_of
from herringbone.backends.ssh.start.line import fitting, request_of
from herringbone.backends.ssh.start.upload import (
    PackedCode,
    Shares,
    Upload,
    digest_of,
    has_shares,
    pack_source,
    shares_of,
    uploads_of,
)
from herringbone.backends.ssh.transport.connection import Connection
from herringbone.backends.ssh.transport.protocol import Transport
from herringbone.plan.plan import JobPlan
from herringbone.show.console import Console
from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import HerringboneError, HostError, InputError, LaunchError

if TYPE_CHECKING:
    from herringbone.engine.client import Engine

_SECRET_BYTES = 32
_THREADS = 32
# A controller of this job's last attempt may take this long to end and to free its lock.
_OWN_LOCK_SECONDS, _POLL_SECONDS = 10.0, 0.1
# Settings of the supervisor that users may set in the environment of their Python.
_PASSED_ON = (HostVariable.HEARTBEAT, HostVariable.JOIN_TIMEOUT)
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAttempt:
    """The additional facts that a retry needs.

    `name` is the job's name on machines in this attempt, `code` the code that all attempts run. `checkpoints` is a
    folder with the checkpoints of earlier attempts, None for none. `unavailable` maps machines to the reason why this
    attempt must avoid them.
    """

    name: str
    code: PackedCode
    checkpoints: Path | None
    unavailable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Granted:
    """The start of a job that has waited in line.

    `machines` maps hosts to machines, `connections` those machines, by name, to the open connections that hold the
    claims. `code` is the code of the submission.
    """

    machines: Mapping[str, Machine]
    connections: Mapping[str, Connection]
    code: PackedCode


class Submission:
    """Submits one job; `scratch` is a folder here for its packed code, `environ` the client's environment.

    `find` finds this machine's container engine, for machines that run containers. With `next_attempt`, a machine that
    does not answer counts as unavailable, and the job may run on fewer hosts. With `granted`, the machines are chosen.
    """

    def __init__(
        self,
        plan: JobPlan,
        inventory: Inventory,
        transport: Transport[Machine],
        *,
        scratch: Path,
        environ: Mapping[str, str],
        find: Callable[[], Engine],
        next_attempt: NextAttempt | None = None,
        granted: Granted | None = None,
    ) -> None:
        self._plan, self._inventory, self._transport = plan, fitting(plan, inventory), transport
        self._scratch, self._environ, self._find = scratch, environ, find
        self._have_gpus = False
        self._next_attempt = next_attempt
        self._all_hosts = plan.hosts
        self._name = plan.job_name if next_attempt is None else next_attempt.name
        self.code: PackedCode | None = None if next_attempt is None else next_attempt.code
        # By the machine's name: all machines that were tried, also those that turned out to be busy.
        self._connections: dict[str, Connection] = {}
        # By host: the present choice.
        self._machines: dict[str, Machine] = {}
        self._is_granted = granted is not None
        if granted is not None:
            self.code = granted.code
            self._connections, self._machines = dict(granted.connections), dict(granted.machines)
        # Machines that can never serve the job, with the reasons.
        self._never: dict[str, str] = {}
        self._addresses: dict[str, HostAddress] = {}

    def run(self) -> dict[str, tuple[Machine, Connection]]:
        """Start all hosts; return the machine of each host and the open connection to it.

        Raises `HostError` or `LaunchError`, and then leaves nothing running.
        """
        keep_open: set[str] = set()
        with ExitStack() as stack:
            stack.callback(lambda: self._close_all_but(keep_open))
            # [1] Machines take a while to answer, so the files are examined between the requests.
            if not self._is_granted:
                self._connect(self._choose({}))
            if self.code is None:
                assert self._plan.source is not None
                self.code = pack_source(self._plan.source, self._scratch, exclude=self._scratch.parent)
            code = self.code
            whole = [channel for channel in self._plan.channels if not has_shares(channel, self._plan)]
            locations, uploads = uploads_of(whole, self._inventory.shared)
            checkpoints = self._checkpoints()
            if checkpoints is not None:
                uploads[checkpoints.digest] = checkpoints
            if not self._is_granted:
                self._claim_all()  # [2]
            # Only now: a retry may have fewer machines than hosts, and shares depend on their number.
            shares = self._shares(stack)
            self._compare()  # [3]
            if self._next_attempt is not None:
                # A process that was killed while it started this attempt may have left its name on a machine.
                self._in_parallel(self._forget, self._machines)
            image = self._provide_image()  # [4]
            self._in_parallel(lambda host: self._send(host, code, {**uploads, **shares[host].uploads}), self._machines)
            # [5]
            self._start({host: {**locations, **shares[host].locations} for host in shares}, image, checkpoints)
            keep_open.update(machine.name for machine in self._machines.values())
        return {host: (machine, self._connection(host)) for host, machine in self._machines.items()}

    def _choose(self, busy: Mapping[str, str]) -> dict[str, Machine]:
        """Choose a machine for each host; for a retry, for as many hosts as there are machines for."""
        if self._next_attempt is None:
            return choose(self._plan.hosts, self._inventory, busy=busy)
        busy = {**self._next_attempt.unavailable, **busy}
        for count in (len(self._all_hosts), *self._plan.fewer_hosts):
            try:
                chosen = choose(self._all_hosts[:count], self._inventory, busy=busy)
            except (LaunchError, InputError):
                continue
            self._plan = msgspec.structs.replace(self._plan, hosts=self._all_hosts[:count])
            return chosen
        # Raises the error that names the unavailable machines.
        return choose(self._all_hosts, self._inventory, busy=busy)

    def _shares(self, stack: ExitStack) -> dict[str, Shares]:
        """Return each host's share of the channels that hosts share, as folders of links until the end of `stack`."""
        hosts = [host for host in self._plan.hosts if host.name in self._machines]
        if not any(has_shares(channel, self._plan) for channel in self._plan.channels):
            return {host.name: Shares({}, {}) for host in hosts}
        self._scratch.mkdir(parents=True, exist_ok=True)
        links = Path(stack.enter_context(TemporaryDirectory(prefix="shares-", dir=self._scratch)))
        return {host.name: shares_of(self._plan, host, self._inventory.shared, links) for host in hosts}

    def _checkpoints(self) -> Upload | None:
        if self._next_attempt is not None:
            folder = self._next_attempt.checkpoints
        else:
            # Those that the bucket had; an empty folder needs no copy.
            folder = checkpoint_folder(self._plan) if is_s3(self._plan.options.checkpoint_s3_uri) else None
            folder = folder if folder is not None and folder.is_dir() and any(folder.iterdir()) else None
        return None if folder is None else Upload(digest=digest_of(folder, "checkpoints"), path=folder)

    def _connect(self, machines: Mapping[str, Machine]) -> None:
        """Start to connect to each machine, without waiting for any."""
        for machine in machines.values():
            if machine.name not in self._connections:
                self._connections[machine.name] = self._transport.connect(machine)
        self._machines = dict(machines)

    def _claim_all(self) -> None:
        """Claim a machine for each host; replace a machine that another job has by the next free one."""
        busy: dict[str, str] = {}
        locked: set[str] = set()
        while True:
            unlocked = [machine for machine in self._machines.values() if machine.name not in locked]
            answers = self._in_parallel(self._claim, unlocked)
            for machine, answer in zip(unlocked, answers, strict=True):
                if "never" in answer:
                    self._never[machine.name] = answer["never"]
                    self._inventory = fitting(self._plan, self._inventory, self._never)
                elif why := answer.get("lost") or answer.get("busy"):
                    busy[machine.name] = why
                else:
                    locked.add(machine.name)
            if all(machine.name in locked for machine in self._machines.values()):
                break
            # Ends: `busy` grows in every round, and `choose` raises when too few machines remain.
            self._connect(self._choose(busy))
        # A later choice may not contain a machine that was locked for an earlier one; others may need it.
        for name in locked - {machine.name for machine in self._machines.values()}:
            self._connections[name].ask({"ask": "leave"})

    def _claim(self, machine: Machine) -> Message:
        """Claim what a host needs of a machine; {"lost": why} when a retry can do without the machine."""
        claim = {"ask": "claim", **request_of(self._plan, machine)}
        deadline = time.monotonic() + _OWN_LOCK_SECONDS
        try:
            while True:
                answer = self._connections[machine.name].ask(claim)
                # If this very job has the machine, its last attempt is ending there and frees it soon.
                if claim["job"] not in answer.get("jobs", []) or time.monotonic() > deadline:
                    return answer
                time.sleep(_POLL_SECONDS)
        except HostError as error:
            if self._next_attempt is None:
                raise
            return {"lost": str(error).removeprefix(f"{machine.name}: ")}

    def _compare(self) -> None:
        """Compare the machines' facts with the inventory, and those of one group with each other."""
        answers = self._in_parallel(lambda host: self._connection(host).ask({"ask": "facts"}), self._machines)
        facts = dict(zip(self._machines, answers, strict=True))
        if problems := disagreements(self._plan.hosts, self._machines, facts):
            raise HostError("the machines are not what the job needs:\n  " + "\n  ".join(problems))
        if is_s3(self._plan.options.checkpoint_s3_uri):
            lacking = [self._machines[host].name for host, answer in facts.items() if not answer.get("boto3")]
            if lacking:
                raise HostError(
                    f"checkpoint_s3_uri: {', '.join(lacking)}: its Python has no boto3, which sends checkpoints to S3; "
                    "install boto3 there, or name a folder that all machines see"
                )
        self._addresses = {host: address_of(machine, facts[host]) for host, machine in self._machines.items()}
        self._have_gpus = any(answer["gpus"] for answer in answers)

    def _provide_image(self) -> str | None:
        """Return the id of the image, which all machines have afterwards; None when hosts are processes."""
        if runtime_of(self._machines.values()) != "docker":
            return None
        # Imported here: most jobs run as processes and need no container code.
        from herringbone.backends.docker.review import check_image
        from herringbone.backends.ssh.start.images import provide_image

        connections = [self._connection(host) for host in self._machines]
        say = Console(sys.stderr).say
        image = provide_image(self._plan, connections, self._find, gpus=self._have_gpus, say=say)
        check_image(self._plan, image, "ssh")
        return image.id

    def _send(self, host: str, code: PackedCode, uploads: Mapping[str, Upload]) -> None:
        """Send a machine the code and data that it lacks."""
        connection, machine = self._connection(host), self._machines[host]
        missing = connection.ask({"ask": "missing", "code": code.digest, "data": sorted(uploads)})
        if missing["code"]:
            connection.ask({"ask": "code", "digest": code.digest}, code.path.read_bytes())
        for digest, folder in missing["data"].items():
            self._transport.send(machine, uploads[digest].path, folder)
            # Only now does the data get its name, so a copy that breaks is never mistaken for a complete one.
            connection.ask({"ask": "keep", "digest": digest})

    def _start(
        self, locations: Mapping[str, Mapping[str, ChannelLocation]], image: str | None, checkpoints: Upload | None
    ) -> None:
        assert self.code is not None
        code = self.code
        first = next(iter(self._machines))
        several = len(self._machines) > 1
        # A new key for each attempt: supervisors of an attempt that was given up cannot join this one.
        key = os.urandom(_SECRET_BYTES).hex() if several else None
        control = control_address(self._addresses[first]) if several else None
        settings = {name: self._environ[name] for name in _PASSED_ON if name in self._environ}
        machines = {host: msgspec.to_builtins(machine) for host, machine in self._machines.items()}
        s3 = machine_s3(self._plan, several=several)
        sent = msgspec.structs.replace(self._plan, job_name=self._name)
        if s3 is not None:
            # The machine keeps checkpoints in the host's own tree, and `s3` says where they go.
            sent = msgspec.structs.replace(sent, options=msgspec.structs.replace(sent.options, checkpoint_s3_uri=None))
        plan = sent.to_send()

        def start(host: str) -> Message:
            config = HostConfig(
                plan=plan,
                host=host,
                control=control,
                key=key,
                code=code.digest,
                data=dict(locations[host]),
                interface=self._addresses[host].interface,
                machines=machines,
                settings={**settings, HostVariable.STOP_GRACE: f"{stop_grace():g}"},
                image=image,
                checkpoints=None if checkpoints is None else checkpoints.digest,
                s3=s3,
            )
            return self._connection(host).ask({"ask": "start", "config": msgspec.to_builtins(config)})

        try:
            self._in_parallel(start, self._machines)
        # BaseException: after Ctrl-C, too, no host may run on.
        except BaseException:
            self._in_parallel(self._forget, self._machines)
            raise

    def _forget(self, host: str) -> None:
        # A machine that does not know the job refuses, which is fine.
        with suppress(HerringboneError):
            self._connection(host).ask({"ask": "forget", "job": self._name})

    def _connection(self, host: str) -> Connection:
        return self._connections[self._machines[host].name]

    def _close_all_but(self, keep_open: Collection[str]) -> None:
        closing = [connection for name, connection in self._connections.items() if name not in keep_open]
        self._in_parallel(lambda connection: connection.close(), closing)

    @staticmethod
    def _in_parallel(call: Callable[[_Item], Any], items: Sequence[_Item] | Mapping[_Item, Any]) -> list[Any]:
        """Call for each item in a thread of its own; when all have ended, raise all their errors as one."""
        with ThreadPoolExecutor(_THREADS) as pool:
            calls = [pool.submit(call, item) for item in items]
        errors = [error for future in calls if (error := future.exception()) is not None]
        if errors and len(errors) > 1 and all(isinstance(error, HostError) for error in errors):
            raise HostError("\n  ".join([f"{len(errors)} machines:", *map(str, errors)]))
        if errors:
            raise errors[0]
        return [future.result() for future in calls]
