"""What `slurm:PARTITION` makes of a plan: what it cannot serve, and what Slurm itself says of the request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from herringbone.backends.slurm.commands import SlurmCommands
from herringbone.backends.slurm.containers import image_of
from herringbone.backends.slurm.script import minutes, partition_of, settings_of
from herringbone.planning.checks import check_files, check_served, unused_of
from herringbone.planning.plan import JobPlan
from herringbone_contract.errors import InputError, OptionError, SlurmError, UnsupportedError

_NAME = "slurm"
# How often a job begins anew that says nothing of it.
RETRIES = 3
_UNUSED = ("framework_version", "py_version", "shm_size", "bake_requirements")
# Of those that mean nothing on one's own machine, these do here.
_USED = ("slurm",)
_REFUSED = {
    "enable_network_isolation": "nodes of a cluster share its network",
    "encrypt_inter_container_traffic": "hosts of a cluster talk unencrypted",
    "container_entry_point": "hosts run a script; give entry_point",
    "container_arguments": "hosts run a script; give hyperparameters",
    "min_instance_count": "Slurm starts a job again on as many nodes as it asked for; leave it out",
}
_SINFO = ("sinfo", "--noheader", "--format=%R|%l|%D|%c|%m|%G")
# What sbatch says, and whose mistake it is.
_TROUBLES = (
    (r"invalid account|account.*not permitted", "slurm: account {account}"),
    (r"invalid qos", "slurm: qos {qos}"),
    (r"generic resource|gres", "slurm: gres {gres}"),
    (r"feature", "slurm: constraint {constraint}"),
    (r"group not permitted|user.*not (permitted|authorized)|access/permission|invalid user|user id", "this user"),
    (r"configuration is not available|node count|more processors|too many", "the request is larger than the partition"),
)


class Partition(NamedTuple):
    """One kind of nodes of a partition, as `sinfo` lists it. `max_minutes` is None where a job may run for ever."""

    name: str
    max_minutes: int | None
    nodes: int
    cpus: str
    megabytes: str
    gres: str

    def __str__(self) -> str:
        limit = "no time limit" if self.max_minutes is None else f"{self.max_minutes} minutes at most"
        return f"{self.nodes} nodes of {self.cpus} CPUs, {self.megabytes} MB, gres {self.gres}; {limit}"


def check(plan: JobPlan) -> None:
    """Raise the `UsageError` or `ArchiveError` that can be seen without a cluster."""
    check_served(_NAME, plan, _REFUSED, retries=RETRIES)
    if plan.source is None:
        raise UnsupportedError(f"image_uri: {_NAME} runs a script, not an image's own program: give entry_point")
    if image_of(plan) is None and settings_of(plan).container_runtime is not None:
        raise OptionError("slurm: container_runtime goes with image_uri; without one, ranks run in this Python")
    partition_of(plan)
    check_files(_NAME, plan)


def unused(plan: JobPlan) -> tuple[str, ...]:
    """Return the given options that mean nothing here."""
    return tuple(sorted(name for name in unused_of(plan, _UNUSED) if name not in _USED))


def check_cluster(plan: JobPlan, slurm: SlurmCommands, words: Sequence[str], script: str) -> None:
    """Have Slurm judge the request, and submit nothing.

    Raises `InputError` for what it refuses, and for what it would let wait for ever; `SlurmError` when it does not
    answer.
    """
    wanted = partition_of(plan).split(",")
    kinds = parse_sinfo(slurm.ask(*_SINFO))
    known = sorted({kind.name for kind in kinds})
    if missing := [name for name in wanted if name not in known]:
        raise InputError(
            f"instance_type: the cluster of {slurm.where} has no partition {', '.join(missing)} that this user may "
            f"see; it has: {', '.join(known) or 'none'}"
        )
    ours = [kind for kind in kinds if kind.name in wanted]
    needed = minutes(plan.options.max_run)
    if all(kind.max_minutes is not None and kind.max_minutes < needed for kind in ours):
        most = max(kind.max_minutes or 0 for kind in ours)
        raise InputError(
            f"max_run: {plan.options.max_run} s is more than partition {ours[0].name} allows, {most} minutes; give "
            f"max_run={most * 60} or less, and checkpoint_s3_uri to go on in another job"
        )
    # Many a cluster takes a job that its partition's rules shut out, and lets it wait.
    for name in wanted:
        check_rules(plan, slurm.ask("scontrol", "--oneliner", "show", "partition", name))
    try:
        slurm.ask(*words, "--test-only", stdin=script)
    except SlurmError as error:
        raise InputError(explain(str(error), plan, ours)) from None


def check_rules(plan: JobPlan, partition: str) -> None:
    """Raise `InputError` for an account or a qos that a partition, as scontrol shows it, is closed to. Pure."""
    rules = dict(word.partition("=")[::2] for word in partition.split())
    settings = settings_of(plan)
    for option, plural in (("account", "Accounts"), ("qos", "Qos")):
        given = getattr(settings, option)
        allowed, denied = rules.get(f"Allow{plural}", "ALL"), rules.get(f"Deny{plural}", "")
        if given is None or (allowed == "ALL" and given not in denied.split(",")) or given in allowed.split(","):
            continue
        who = f"only to {allowed}" if allowed != "ALL" else f"to all but {denied}"
        raise InputError(f"slurm: {option} {given}: partition {rules.get('PartitionName')} is open {who}")


def explain(said: str, plan: JobPlan, kinds: Sequence[Partition]) -> str:
    """Name the option that Slurm's refusal is about, and what there is. Pure."""
    settings = settings_of(plan)
    for pattern, whose in _TROUBLES:
        if re.search(pattern, said, re.IGNORECASE):
            given = {name: getattr(settings, name) for name in ("account", "qos", "gres", "constraint")}
            there = "; ".join(f"partition {kind.name} has {kind}" for kind in kinds)
            count = len(plan.hosts)
            return f"{whose.format(**given)}: Slurm refuses it ({said}); {count} hosts are asked for, and {there}"
    return f"Slurm refuses the job: {said}"


def parse_sinfo(text: str) -> list[Partition]:
    """Read what `sinfo` answers.

    >>> parse_sinfo("gpu|2:00:00|4|8|4000|gpu:2\\n")[0].max_minutes
    120
    """
    found = []
    for line in text.splitlines():
        name, limit, nodes, cpus, megabytes, gres = line.split("|")
        found.append(Partition(name, minutes_of(limit), int(nodes), cpus, megabytes, gres))
    return found


def minutes_of(limit: str) -> int | None:
    """Read a time limit of Slurm's: `[days-]hours:minutes:seconds`, or `infinite`.

    >>> minutes_of("1-02:00:00"), minutes_of("30:00"), minutes_of("infinite")
    (1560, 30, None)
    """
    days, dash, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")] if rest.replace(":", "").isdigit() else []
    if not parts:
        return None
    while len(parts) < 3:
        parts.insert(0, 0)
    hours, mins, _ = parts
    return (int(days) if dash else 0) * 1440 + hours * 60 + mins
