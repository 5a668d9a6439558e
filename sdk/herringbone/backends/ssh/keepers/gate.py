"""Requests that a keeper takes from its job's holder, and the secrets that it adds from its own memory. Pure.

The holder sends no secret, because connections between keepers hide nothing: `bare_start` leaves secrets out, and
`complete_start` puts the plan and the attempt's key of this machine's own memory in their place.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from herringbone.backends.ssh.agent.host_config import HostConfig
from herringbone.backends.ssh.agent.messages import Message
from herringbone.backends.ssh.attempts.current import attempt_key, split_attempt
from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.plan.plan import HostPlan, parse_plan
from herringbone_contract.errors import HostError

_ABOUT_JOBS = ("claim", "follow", "log", "kill", "forget", "stop")
_ABOUT_THE_MACHINE = ("leave", "facts", "owner", "missing", "keep")
_ATTEMPT = re.compile(r"[A-Za-z0-9-]+(\.[1-9][0-9]{0,8})?")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class KeeperConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The memory of a job's keeper on one machine: JSON on its standard input, because it holds secrets.

    `machine` is this machine's name. `machines` are all of the job's, in the order of their votes, `addresses` those of
    their keepers. `key` is the keepers' common secret. `attempt` is the first attempt, as the index has it, and `base`
    its host on this machine. `shared` are the inventory's. `seconds` is the length of a lease, `margin` the time in
    which a machine ends its ranks.
    """

    machine: str
    machines: dict[str, Machine]
    addresses: dict[str, tuple[str, int]]
    key: str
    attempt: dict[str, Any]
    base: HostConfig
    shared: tuple[str, ...]
    seconds: float
    margin: float

    @property
    def job(self) -> str:
        return str(self.base.plan["job_name"])


def is_of_job(name: object, job: str) -> bool:
    """Report whether a name is that of an attempt of a job.

    >>> is_of_job("digits-1.2", "digits-1"), is_of_job("digits-2", "digits-1"), is_of_job("digits-1/../x", "digits-1")
    (True, False, False)
    """
    return isinstance(name, str) and _ATTEMPT.fullmatch(name) is not None and split_attempt(name)[0] == job


def bare_start(config: Message) -> Message:
    """Return what a holder tells a machine of a host that it is to start."""
    plan = config["plan"]
    return {
        **{name: config[name] for name in ("host", "control", "machines", "checkpoints", "spent")},
        "name": plan["job_name"],
        "hosts": plan["hosts"],
    }


def complete_start(bare: Message, config: KeeperConfig) -> HostConfig:
    """Return the host to start. Raises `HostError` for another job's, and `msgspec.ValidationError`."""
    base = config.base
    if not is_of_job(bare["name"], config.job):
        raise HostError(f"{bare['name']} is no attempt of {config.job}")
    if (digest := bare["checkpoints"]) is not None:
        _check_digests([digest])
    plan = parse_plan(base.plan)
    plan = msgspec.structs.replace(
        plan,
        job_name=bare["name"],
        hosts=msgspec.convert(bare["hosts"], tuple[HostPlan, ...]),
    )
    return msgspec.structs.replace(
        base,
        plan=plan.to_send(),
        host=str(bare["host"]),
        control=bare["control"],
        key=None if bare["control"] is None else attempt_key(config.key, bare["name"]),
        machines=bare["machines"],
        checkpoints=digest,
        spent=float(bare["spent"]),
    )


def check_request(message: Message, job: str) -> None:
    """Raise `HostError` for a request that no attempt of this job needs."""
    verb = message.get("ask")
    if verb in _ABOUT_JOBS and is_of_job(message.get("job"), job):
        return
    if verb in _ABOUT_THE_MACHINE:
        _check_digests([*message.get("data", []), *([message["digest"]] if "digest" in message else [])])
        return
    raise HostError(f"{verb} of {message.get('job')}: the machines of {job} do not ask that of each other")


def _check_digests(digests: list[Any]) -> None:
    # They become names of folders.
    for digest in digests:
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise HostError(f"{digest!r} is no digest")
