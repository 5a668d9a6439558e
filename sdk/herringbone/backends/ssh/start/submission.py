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
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec

from herringbone.aws.location import is_s3
from herringbone.backends.detached import stop_grace
from herringbone.backends.on_s3 import machine_s3
from herringbone.backends.review.checks import checkpoint_folder
from herringbone.backends.ssh.agent.host_config import ChannelLocation, HostConfig
from herringbone.backends.ssh.agent.messages import Message
from herringbone.backends.ssh.attempts.current import CurrentAttempt, attempt_key
from herringbone.backends.ssh.machines.facts import HostAddress, address_of, control_address, disagreements
from herringbone.backends.ssh.machines.inventory import Inventory, Machine, runtime_of
from herringbone.backends.ssh.start.claims import Claims, Granted
from herringbone.backends.ssh.start.keepers import keeper_configs, retries_alone
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
from herringbone.backends.ssh.transport.protocol import Transport, in_parallel
from herringbone.plan.plan import JobPlan
from herringbone.show.console import Console
from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import HerringboneError, HostError

if TYPE_CHECKING:
    from herringbone.engine.client import Engine

_SECRET_BYTES = 32
# Settings of the supervisor that users may set in the environment of their Python.
_PASSED_ON = (HostVariable.HEARTBEAT, HostVariable.JOIN_TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAttempt:
    """The additional facts that a retry needs.

    `name` is the job's name on machines in this attempt, `code` the code that all attempts run. `checkpoints` is a
    folder with the checkpoints of earlier attempts, None for none. `unavailable` maps machines to the reason why this
    attempt must avoid them. `spent` are the seconds since the first attempt began. `agree` gets the machine of each
    host before the first one starts.
    """

    name: str
    code: PackedCode
    checkpoints: Path | None
    unavailable: Mapping[str, str]
    spent: float
    agree: Callable[[Mapping[str, Machine]], None] = lambda _: None


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
        self._inventory, self._transport = inventory, transport
        self._scratch, self._environ, self._find = scratch, environ, find
        self._have_gpus = False
        self._next_attempt = next_attempt
        self._claims = Claims(
            plan,
            inventory,
            transport,
            unavailable=None if next_attempt is None else next_attempt.unavailable,
            granted=granted,
            spent=0.0 if next_attempt is None else next_attempt.spent,
        )
        self._name = plan.job_name if next_attempt is None else next_attempt.name
        self._spent = 0.0 if next_attempt is None else next_attempt.spent
        self.code: PackedCode | None = None
        if (start := next_attempt or granted) is not None:
            self.code = start.code
        self._addresses: dict[str, HostAddress] = {}
        # The ports of the keepers of a job that its machines retry, by host.
        self._keepers: dict[str, int] = {}

    @property
    def _plan(self) -> JobPlan:
        """The plan, whose hosts may become fewer with the claims of a retry."""
        return self._claims.plan

    @property
    def _machines(self) -> Mapping[str, Machine]:
        return self._claims.machines

    def run(self) -> dict[str, tuple[Machine, Connection]]:
        """Start all hosts; return the machine of each host and the open connection to it.

        Raises `HostError` or `LaunchError`, and then leaves nothing running.
        """
        keep_open: set[str] = set()
        with ExitStack() as stack:
            stack.callback(lambda: self._claims.close_all_but(keep_open))
            # [1] Machines take a while to answer, so the files are examined between the requests.
            self._claims.connect()
            if self.code is None:
                assert self._plan.source is not None
                self.code = pack_source(self._plan.source, self._scratch, exclude=self._scratch.parent)
            code = self.code
            whole = [channel for channel in self._plan.channels if not has_shares(channel, self._plan)]
            locations, uploads = uploads_of(whole, self._inventory.shared)
            checkpoints = self._checkpoints()
            if checkpoints is not None:
                uploads[checkpoints.digest] = checkpoints
            self._claims.claim_all()  # [2]
            # Before the facts, which name another free port.
            self._start_keepers()
            # Only now: a retry may have fewer machines than hosts, and shares depend on their number.
            shares = self._shares(stack)
            self._compare()  # [3]
            if self._next_attempt is not None:
                # A process that was killed while it started this attempt may have left its name on a machine.
                in_parallel(self._forget, self._machines)
            image = self._provide_image()  # [4]
            in_parallel(lambda host: self._send(host, code, {**uploads, **shares[host].uploads}), self._machines)
            if self._next_attempt is not None:
                self._next_attempt.agree(self._machines)
            # [5]
            self._start({host: {**locations, **shares[host].locations} for host in shares}, image, checkpoints)
            keep_open.update(machine.name for machine in self._machines.values())
        return {host: (machine, self._claims.connection(host)) for host, machine in self._machines.items()}

    def _shares(self, stack: ExitStack) -> dict[str, Shares]:
        """Return each host's share of the channels that hosts share, as folders of links until the end of `stack`."""
        hosts = [host for host in self._plan.hosts if host.name in self._machines]
        if not any(has_shares(channel, self._plan) for channel in self._plan.channels):
            return {host.name: Shares({}, {}) for host in hosts}
        self._scratch.mkdir(parents=True, exist_ok=True)
        links = Path(stack.enter_context(TemporaryDirectory(prefix="shares-", dir=self._scratch)))
        return {host.name: shares_of(self._plan, host, self._inventory.shared, links) for host in hosts}

    @property
    def attempt(self) -> CurrentAttempt:
        """The first attempt, which `run` has started."""
        assert self.code is not None
        return CurrentAttempt(
            machines=dict(self._machines),
            name=self._name,
            code_path=str(self.code.path),
            code_digest=self.code.digest,
            members={machine.name: machine for machine in self._machines.values()} if self._keepers else {},
        )

    def _start_keepers(self) -> None:
        if self._next_attempt is None and retries_alone(self._plan, runtime_of(self._machines.values())):
            answers = in_parallel(
                lambda host: self._claims.connection(host).ask({"ask": "await_keeper"}), self._machines
            )
            self._keepers = {host: answer["port"] for host, answer in zip(self._machines, answers, strict=True)}

    def _checkpoints(self) -> Upload | None:
        if self._next_attempt is not None:
            folder = self._next_attempt.checkpoints
        else:
            # Those that the bucket had; an empty folder needs no copy.
            folder = checkpoint_folder(self._plan) if is_s3(self._plan.options.checkpoint_s3_uri) else None
            folder = folder if folder is not None and folder.is_dir() and any(folder.iterdir()) else None
        return None if folder is None else Upload(digest=digest_of(folder, "checkpoints"), path=folder)

    def _compare(self) -> None:
        """Compare the machines' facts with the inventory, and those of one group with each other."""
        answers = in_parallel(lambda host: self._claims.connection(host).ask({"ask": "facts"}), self._machines)
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

        connections = [self._claims.connection(host) for host in self._machines]
        say = Console(sys.stderr).say
        image = provide_image(self._plan, connections, self._find, gpus=self._have_gpus, say=say)
        check_image(self._plan, image, "ssh")
        return image.id

    def _send(self, host: str, code: PackedCode, uploads: Mapping[str, Upload]) -> None:
        """Send a machine the code and data that it lacks."""
        connection, machine = self._claims.connection(host), self._machines[host]
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
        key = os.urandom(_SECRET_BYTES).hex() if several or self._keepers else None
        control = control_address(self._addresses[first]) if several else None
        settings = {name: self._environ[name] for name in _PASSED_ON if name in self._environ}
        keepers = {}
        if self._keepers:
            assert key is not None
            keepers = keeper_configs(
                self.attempt,
                self._addresses,
                self._keepers,
                key=key,
                shared=self._inventory.shared,
                heartbeat=settings.get(HostVariable.HEARTBEAT),
            )
            # The key of the keepers makes one for each attempt.
            key = attempt_key(key, self._name) if several else None
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
                permit=keepers[host]["seconds"] if host in keepers else None,
                spent=self._spent,
            )
            keeper = {"keeper": keepers[host]} if host in keepers else {}
            return self._claims.connection(host).ask({"ask": "start", "config": msgspec.to_builtins(config), **keeper})

        try:
            in_parallel(start, self._machines)
        # BaseException: after Ctrl-C, too, no host may run on.
        except BaseException:
            in_parallel(self._forget, self._machines)
            raise

    def _forget(self, host: str) -> None:
        # A machine that does not know the job refuses, which is fine.
        with suppress(HerringboneError):
            self._claims.connection(host).ask({"ask": "forget", "job": self._name})
