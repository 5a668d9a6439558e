"""The keepers of a job, with which its machines retry it without a client: which jobs have them, and their configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.aws.location import is_s3
from herringbone.backends.ssh.start.upload import has_shares
from herringbone_contract.constants import DEFAULT_HEARTBEAT_SECONDS, HostVariable
from herringbone_contract.errors import OptionError
from herringbone_contract.faults.policies import REPLAN

if TYPE_CHECKING:
    from herringbone.backends.ssh.attempts.current import CurrentAttempt
    from herringbone.backends.ssh.machines.facts import HostAddress
    from herringbone.backends.ssh.machines.inventory import Runtime
    from herringbone.plan.plan import JobPlan

# A lease is twice as long as supervisors wait for a silent host, and ranks end far sooner than in the margin.
_LEASE_HEARTBEATS, _MARGIN_HEARTBEATS = 6, 3
_PAIR = 2


def why_not_alone(plan: JobPlan, runtime: Runtime) -> str:
    """Return why the machines of a job cannot retry it without a client, "" where they can or nobody is to."""
    if not plan.options.max_retry_attempts:
        return ""
    if runtime == "docker":
        return "its hosts are containers"
    if len({host.group for host in plan.hosts}) > 1:
        return "its instance groups have machines of their own"
    if REPLAN in plan.options.fault_policies.values():
        return f"they know one layout, and fault_policies has {REPLAN}"
    if is_s3(plan.options.checkpoint_s3_uri):
        return "its checkpoints in S3 travel through the client"
    shares = [channel.name for channel in plan.channels if has_shares(channel, plan)]
    if shares:
        return f"each host has a share of channel {', '.join(shares)}, which depends on the number of hosts"
    return ""


def retries_alone(plan: JobPlan, runtime: Runtime) -> bool:
    """Report whether the machines of a job retry it without a client."""
    wanted = plan.options.retry_without_client
    if wanted is None:
        # Of two, one alone decides: while it is lost, a client could not either.
        wanted = len(plan.hosts) != _PAIR
    return bool(plan.options.max_retry_attempts and wanted) and not why_not_alone(plan, runtime)


def who_retries(plan: JobPlan, runtime: Runtime) -> str:
    """Return a sentence for `herringbone plan` about who starts another attempt; "" where nobody does."""
    if not plan.options.max_retry_attempts:
        return ""
    if retries_alone(plan, runtime):
        return "the job's machines, without a client; a restart of a machine ends its part in it"
    why = why_not_alone(plan, runtime)
    other = f"its machines cannot, because {why}" if why else "retry_without_client=False keeps its machines from it"
    if not why and plan.options.retry_without_client is None:
        other = "of two machines only the first could; retry_without_client=True lets it"
    return f"a process that looks at the job; {other}"


def keeper_configs(
    attempt: CurrentAttempt,
    addresses: Mapping[str, HostAddress],
    ports: Mapping[str, int],
    *,
    key: str,
    shared: tuple[str, ...],
    heartbeat: str | None,
) -> dict[str, dict[str, Any]]:
    """Return the config of each host's keeper, without the host; `addresses` and `ports` are by host.

    `heartbeat` is that of the job in seconds, as text; None for the default. Raises `OptionError`.
    """
    try:
        seconds = DEFAULT_HEARTBEAT_SECONDS if heartbeat is None else float(heartbeat)
    except ValueError:
        raise OptionError(f"{HostVariable.HEARTBEAT}={heartbeat}: expected a number of seconds") from None
    common = {
        "machines": {machine.name: msgspec.to_builtins(machine) for machine in attempt.machines.values()},
        "addresses": {
            machine.name: [addresses[host].address, ports[host]] for host, machine in attempt.machines.items()
        },
        "key": key,
        # The code's path is the client's.
        "attempt": msgspec.to_builtins(msgspec.structs.replace(attempt, code_path=None, code_digest=None)),
        "shared": shared,
        "seconds": _LEASE_HEARTBEATS * seconds,
        "margin": _MARGIN_HEARTBEATS * seconds,
    }
    return {host: {**common, "machine": machine.name} for host, machine in attempt.machines.items()}
