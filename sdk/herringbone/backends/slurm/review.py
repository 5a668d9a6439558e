"""The review of a plan for `slurm:PARTITION`: options that it cannot serve, and Slurm's own answer to the request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from herringbone.backends.review.checks import NO_MEMORY, check_files, check_served, unused_of
from herringbone.backends.review.settings import check_ranks, refuse_of_image
from herringbone.backends.slurm.commands import SlurmCommands
from herringbone.backends.slurm.containers import image_of
from herringbone.backends.slurm.script import gpus_per_node, minutes, partition_of, settings_of
from herringbone.backends.slurm.states import rows_of
from herringbone.plan.plan import JobPlan, refuse
from herringbone.plan.s3 import written
from herringbone_contract.errors import InputError, OptionError, SlurmError, UnsupportedError

_NAME = "slurm"
# Restarts of a job that sets no `max_retry_attempts`.
RETRIES = 3
_UNUSED = ("framework_version", "py_version", "shm_size", "bake_requirements")
# Options that have no effect on other backends, and do on this one.
_USED = ("slurm",)
_REFUSED = {
    **NO_MEMORY,
    "enable_network_isolation": "nodes of a cluster share its network",
    "encrypt_inter_container_traffic": "hosts of a cluster talk unencrypted",
    "container_entry_point": "hosts run a script; give entry_point",
    "container_arguments": "hosts run a script; give hyperparameters",
    "gpus": "Slurm gives GPUs to a job that asks for them in its words: slurm={'gres': 'gpu:4'}",
    "min_instance_count": "Slurm restarts a job on as many nodes as it asked for; leave it out",
}
_SINFO = ("sinfo", "--noheader", "--format=%R|%l|%D|%c|%m|%G")
# sbatch's messages, and the option that each is about.
_REFUSALS = (
    (r"invalid account|account.*not permitted", "slurm: account {account}"),
    (r"invalid qos", "slurm: qos {qos}"),
    (r"generic resource|gres", "slurm: gres {gres}"),
    (r"feature", "slurm: constraint {constraint}"),
    (r"group not permitted|user.*not (permitted|authorized)|access/permission|invalid user|user id", "this user"),
    (r"configuration is not available|node count|more processors|too many", "the request is larger than the partition"),
)


class Partition(NamedTuple):
    """One kind of nodes of a partition, as `sinfo` lists it; `max_minutes` is None without a time limit."""

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
    refuse_of_image(_NAME, plan)
    check_ranks(plan, gpus_per_node(plan))
    check_files(_NAME, plan)
    _check_s3(plan)


def _check_s3(plan: JobPlan) -> None:
    """Refuse to write to S3 with credentials that the first node would not find by itself."""
    if not written(plan):
        return
    # Imported here: most jobs write nothing to S3.
    from herringbone.s3.review import session_of

    source = session_of(plan).source
    if source in ("env", "explicit"):
        where = "environment variables" if source == "env" else "sagemaker_session"
        reason = (
            f"the credentials come from {where}, and would be on disk until a node runs the batch script; have the "
            "nodes find some: a profile in ~/.aws on the shared file system (AWS_PROFILE), or a role"
        )
        refuse(_NAME, dict.fromkeys(written(plan), reason))


def unused(plan: JobPlan) -> tuple[str, ...]:
    """Return the options of the plan that have no effect here."""
    return unused_of(plan, _UNUSED, used=_USED)


def check_cluster(plan: JobPlan, slurm: SlurmCommands, words: Sequence[str], script: str) -> None:
    """Let Slurm check the request without submitting it.

    Raises `InputError` for a request that Slurm refuses or would keep waiting for ever, `SlurmError` when Slurm does
    not answer.
    """
    names = partition_of(plan).split(",")
    kinds = parse_sinfo(slurm.ask(*_SINFO))
    if not kinds and slurm.where != "this machine":
        raise SlurmError(
            f"sinfo on {slurm.where} lists no partition: does a login file there leave, or start another shell? Let it "
            "do so on terminals only"
        )
    known_names = sorted({kind.name for kind in kinds})
    if missing := [name for name in names if name not in known_names]:
        raise InputError(
            f"instance_type: the cluster of {slurm.where} has no partition {', '.join(missing)} that this user may "
            f"see; it has: {', '.join(known_names) or 'none'}"
        )
    candidates = [kind for kind in kinds if kind.name in names]
    needed = minutes(plan.time_limit)
    # One kind of node that allows the time is enough: Slurm then chooses among those.
    if all(kind.max_minutes is not None and kind.max_minutes < needed for kind in candidates):
        most = max(kind.max_minutes or 0 for kind in candidates)
        raise InputError(
            f"max_run: {plan.time_limit} s is more than partition {candidates[0].name} allows, {most} minutes; "
            f"give max_run={most * 60} or less, and checkpoint_s3_uri to go on in another job"
        )
    # Many clusters accept a job that the rules of its partition exclude, and keep it waiting.
    for name in names:
        check_rules(plan, slurm.ask("scontrol", "--oneliner", "show", "partition", name))
    try:
        slurm.ask(*words, "--test-only", stdin=script)
    except SlurmError as error:
        raise InputError(explain(str(error), plan, candidates)) from None


def check_rules(plan: JobPlan, partition: str) -> None:
    """Raise `InputError` when a partition, as scontrol shows it, excludes the job's account or qos. Pure."""
    rules = dict(word.partition("=")[::2] for word in partition.split())
    settings = settings_of(plan)
    for option, plural in (("account", "Accounts"), ("qos", "Qos")):
        value = getattr(settings, option)
        allowed, denied = rules.get(f"Allow{plural}", "ALL"), rules.get(f"Deny{plural}", "")
        if value is None or (allowed == "ALL" and value not in denied.split(",")) or value in allowed.split(","):
            continue
        who = f"only to {allowed}" if allowed != "ALL" else f"to all but {denied}"
        raise InputError(f"slurm: {option} {value}: partition {rules.get('PartitionName')} is open {who}")


def explain(message: str, plan: JobPlan, kinds: Sequence[Partition]) -> str:
    """Return an error that names the option behind Slurm's refusal, and what the partition has. Pure."""
    settings = settings_of(plan)
    for pattern, option in _REFUSALS:
        if re.search(pattern, message, re.IGNORECASE):
            values = {name: getattr(settings, name) for name in ("account", "qos", "gres", "constraint")}
            there = "; ".join(f"partition {kind.name} has {kind}" for kind in kinds)
            count = len(plan.hosts)
            return f"{option.format(**values)}: Slurm refuses it ({message}); {count} hosts are asked for, and {there}"
    return f"Slurm refuses the job: {message}"


def parse_sinfo(text: str) -> list[Partition]:
    """Parse the output of `sinfo`.

    >>> parse_sinfo("gpu|2:00:00|4|8|4000|gpu:2\\n")[0].max_minutes
    120
    """
    partitions = []
    for line in rows_of(text):
        try:
            name, limit, nodes, cpus, megabytes, gres = line.split("|")
            partitions.append(Partition(name, minutes_of(limit), int(nodes), cpus, megabytes, gres))
        except ValueError:
            raise SlurmError(f"sinfo answers with a line of another form: {line[:200]!r}") from None
    return partitions


def minutes_of(limit: str) -> int | None:
    """Return a time limit of Slurm in minutes; Slurm writes `[days-]hours:minutes:seconds`, or `infinite`.

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
