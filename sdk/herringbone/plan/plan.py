"""Lay out a request: turn it into a `JobPlan`, the description of the job that a backend starts.

    JobRequest --make_plan--> JobPlan --backend.submit--> a running job

A plan is its request with what follows from it, so `request_of` takes the request out of a stored one. It can be
printed, compared and stored. Making a plan starts nothing and writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from herringbone.plan.budget import budget_seconds
from herringbone.plan.code_size import CodeSize
from herringbone.plan.host_counts import fewer_hosts
from herringbone.plan.inputs import Channel, model_channel
from herringbone.plan.names import check_environment, check_hyperparameters, none_notes
from herringbone.plan.options.typed import InstanceGroup, Options
from herringbone.plan.request import JobRequest, added_hyperparameters, distribution_of, groups_of
from herringbone.plan.secrets import check_arguments, masked_request
from herringbone.plan.shown import EXAMINED, OWN_HOSTS, plan_rows, rows_text
from herringbone.plan.source import SourceCode
from herringbone_contract import reduce_servers
from herringbone_contract.constants import HostVariable, Key, RankVariable
from herringbone_contract.distribution import Distribution, check_layout, parse_stored, with_instance_groups
from herringbone_contract.errors import HerringboneError, InputError, OptionError, UnsupportedError
from herringbone_contract.events.drain import described
from herringbone_contract.faults.policies import FAULTS
from herringbone_contract.hyperparameters import check_limits, decode, encode, encode_values
from herringbone_contract.layout import ranks_per_host
from herringbone_contract.masking import masked_hyperparameters
from herringbone_contract.prediction.answer import Answer
from herringbone_contract.resources import host_names

# The options that the program on each host serves, which starts the script, and the hyperparameters that carry them.
WATCHED = {
    "hang_timeout": Key.HANG_TIMEOUT,
    "idle_timeout": Key.IDLE_TIMEOUT,
    "loss_spike_factor": Key.LOSS_SPIKE_FACTOR,
    "check_replicas_every": Key.CHECK_REPLICAS_EVERY,
    "fault_policies": Key.FAULT_POLICIES,
    "drain_notice": Key.DRAIN_NOTICE,
    "keep_checkpoints": Key.KEEP_CHECKPOINTS,
}


class HostPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host of a job.

    `ranks` is None where the host itself counts its ranks: one per GPU, or one without GPUs. A `helper` has 0 ranks.
    """

    name: str
    instance_type: str
    group: str
    ranks: int | None
    helper: bool = False


class JobPlan(JobRequest, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False):
    """Everything that a backend needs to start a job.

    >>> print(estimator.plan("data"))                                   # doctest: +SKIP
    >>> estimator.plan("data").to_dict()["hyperparameters"]["epochs"]   # doctest: +SKIP
    '3'

    - It has the members of its request. `channels` are all channels of the job: those of `fit`, then the model's
      (`model_uri`), always the last one.
    - `distribution` is the typed strategy. `hyperparameters` carry the same strategy to the hosts, encoded.
    - `unused` names the options that the user set and that have no effect on this backend.
    - `request` is the service's request, unmasked, with `${...}` for values that only the account knows. It is None
      where no service runs the job.
    - `fewer_hosts`: host counts, largest first, with which a retry may run when some hosts are unavailable.
    - `code` is the size of the code; None for an archive. `made_name`: the next `fit` makes another `job_name`.
    - `warnings` are about values that surprise, and about this machine at the time of the plan, such as a full disk.
    - `hourly_cost` are the dollars of all hosts an hour; None where nobody asked, or where the price is not known.
    - `prediction` is what a measured step of the script tells about memory, time and cost; None where none is known.
    """

    job_name: str
    backend: str
    distribution: Distribution
    hosts: tuple[HostPlan, ...]
    source: SourceCode | None
    hyperparameters: dict[str, str]
    unused: tuple[str, ...] = ()
    request: dict[str, Any] | None = None
    fewer_hosts: tuple[int, ...] = ()
    code: CodeSize | None = None
    made_name: bool = False
    warnings: tuple[str, ...] = ()
    prediction: Answer | None = None
    hourly_cost: float | None = None

    @property
    def launcher(self) -> str:
        """The name of the program that starts the ranks, for messages and for the plan as JSON."""
        return self.distribution.launcher.value

    @property
    def budget(self) -> int | None:
        """The seconds that `max_cost` pays for; None without one."""
        if self.options.max_cost is None or self.hourly_cost is None:
            return None
        return budget_seconds(self.options.max_cost, self.hourly_cost)

    @property
    def time_limit(self) -> int:
        """The seconds after which the job is stopped: `max_run`, or fewer where its budget pays for fewer."""
        return min(self.options.max_run, self.budget or self.options.max_run)

    @property
    def limiting_option(self) -> str:
        """The option that sets `time_limit`."""
        return "max_cost" if self.time_limit < self.options.max_run else "max_run"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that each rank's environment gets besides those of its host, unmasked."""
        full = {RankVariable.FULL_HOSTS: str(len(self.hosts))} if self.options.keep_global_batch else {}
        return {**self.options.environment, **full}

    @property
    def script_job_name(self) -> str:
        """The job name that the script reads. It stays the same in every attempt, whatever the platform's name is."""
        encoded = self.hyperparameters.get(Key.JOB_NAME)
        return self.job_name if encoded is None else str(json.loads(encoded))

    @property
    def advice(self) -> str | None:
        """A suggestion for a plan that is valid but slower than it needs to be; None without one."""
        helpers = sum(host.helper for host in self.hosts)
        return reduce_servers.advice(training_hosts=sum(host.ranks != 0 for host in self.hosts), helpers=helpers)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines that `fit` and `run` show before the job starts: about the code, disks, and options without effect."""
        code = () if self.code is None else self.code.notes
        unused = (f"not used by {self.backend}: {', '.join(self.unused)}",) if self.unused else ()
        return (*code, *self.warnings, *unused)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values, without secrets: see `JobRequest.to_dict`."""
        shown = msgspec.structs.replace(
            self,
            request=masked_request(self.request),
            hyperparameters=masked_hyperparameters(self.hyperparameters),
        )
        values = {"launcher": self.launcher, **super(JobPlan, shown).to_dict()}
        if self.hourly_cost is None:
            # Earlier releases read the plans of most jobs.
            del values["hourly_cost"]
        return values

    def to_send(self) -> dict[str, Any]:
        """Return the plan as plain values, with its secrets, and without the parts that only this Python can use."""
        return super(JobPlan, msgspec.structs.replace(self, request=None)).to_send()

    def __str__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """Return the plan for people, as `print(plan)` shows it; `verbose` adds the internal hyperparameters."""
        return rows_text(plan_rows(self.to_dict(), advice=self.advice, verbose=verbose))

    def _repr_html_(self) -> str:
        """Show the plan in a notebook."""
        # Imported here: only notebooks need it.
        from herringbone.show.html import html_table

        return html_table("JobPlan", plan_rows(self.to_dict(), advice=self.advice))


def parse_plan(raw: object) -> JobPlan:
    """Return the plan that `JobPlan.to_dict` wrote; masked values stay masked.

    Raises `InputError` for a plan of another release that has members unknown here, or lacks some.
    """
    try:
        return _parse_plan(raw)
    # Each layer has its own error for a member that it does not know; a JobPlan itself raises TypeError.
    except (msgspec.ValidationError, KeyError, TypeError, ValueError, HerringboneError) as error:
        raise InputError(
            f"the job's plan was written by another release of Herringbone and cannot be read: {error}; describe, "
            "logs and download work without it"
        ) from error


def _parse_plan(raw: object) -> JobPlan:
    stored = msgspec.convert(raw, dict[str, Any])
    stored.pop("launcher", None)  # derived from the distribution
    # msgspec cannot tell the two versions of modelparallel's parameters apart; the grammar of `distribution` can.
    # Plans in indexes of earlier versions have the distribution as hyperparameters only.
    encoded = stored.get("hyperparameters", {})
    # Read leniently: a rule of today must not hide what a job of an earlier release was.
    distribution = parse_stored(stored.pop("distribution")) if "distribution" in stored else decode(encoded)
    # Convert field by field, because `distribution` has been parsed already.
    types = {field.name: field.type for field in msgspec.structs.fields(JobPlan)}
    return JobPlan(
        distribution=distribution, **{name: msgspec.convert(value, types[name]) for name, value in stored.items()}
    )


def make_plan(request: JobRequest, source: SourceCode | None, *, job_name: str, backend: str) -> JobPlan:
    """Lay out hosts and ranks, encode the hyperparameters, and check the rules that concern several arguments.

    `source` is the code that the request names; None for an image that brings its own program. Pure. Raises
    `DistributionError`, `HyperparameterError`, `InputError` or `OptionError`.
    """
    options, values = request.options, request.arguments.hyperparameters
    distribution = distribution_of(request)
    values = {**values, **added_hyperparameters(request, distribution.launcher)}
    group_names = [group.instance_group_name for group in options.instance_groups or ()]
    distribution = with_instance_groups(distribution, group_names)
    groups = groups_of(request)
    hosts = lay_out_hosts(groups, distribution)
    # All of them have equally many ranks, so the first one speaks for all.
    training = [host for host in hosts if host.ranks != 0]
    # None: only the host itself will know its number of ranks.
    if training[0].ranks is not None:
        check_layout(distribution, hosts=len(training), processes_per_host=training[0].ranks)
    names = [
        *watching(options),
        *(["enable_infra_check"] if options.enable_infra_check and backend in EXAMINED else []),
    ]
    if (source is None or options.container_entry_point) and names:
        raise OptionError(
            f"{names[0]}: Herringbone watches the scripts that it starts itself; give entry_point, or leave it out"
        )
    if options.drain_notice is not None:
        _check_drain_notice(options, options.drain_notice)
    added = {
        **encode(distribution, instance_type=training[0].instance_type),
        **encode_values(steering(options, source, job_name=job_name)),
    }
    if backend in EXAMINED and options.enable_infra_check is not None:
        # SageMaker has a member for it, and examines its hosts itself.
        added[Key.INFRA_CHECK] = json.dumps(options.enable_infra_check)
    if backend in OWN_HOSTS and source is not None and not source.remote and options.code_location is not None:
        # The address that AWS's SDK uploads to, and that scripts for AWS's images read.
        location = options.code_location.rstrip("/")
        added[Key.SUBMIT_DIRECTORY] = json.dumps(f"{location}/{job_name}/source/sourcedir.tar.gz")
    # Here and not in the estimator: `attach` rebuilds jobs of other SDKs, which may have such hyperparameters.
    check_hyperparameters(values, added, is_script=source is not None)
    channels = request.channels
    if source is not None:
        check_environment(options.environment, distribution.launcher, values, [channel.name for channel in channels])
    hyperparameters = {**encode_values(values), **added}
    # Each part keeps the limits; together they may still be too many.
    check_limits(hyperparameters)
    check_arguments(hyperparameters, list(values), None if source is None else source.entry_point)
    # Helpers get the model, too: only the data is kept from them.
    channels = tuple(_mounted(channel, backend) for channel in _channels(channels, hosts))
    if options.model_uri is not None:
        channels += model_channel(channels, options.model_channel_name, options.model_uri, base=Path(request.folder))
    return JobPlan(
        **{**{name: getattr(request, name) for name in JobRequest.__struct_fields__}, "channels": channels},
        job_name=job_name,
        backend=backend,
        distribution=distribution,
        hosts=hosts,
        source=source,
        hyperparameters=hyperparameters,
        fewer_hosts=fewer_hosts(options, len(groups), distribution, len(hosts), hosts[0].ranks),
        warnings=() if source is None else none_notes(values),
    )


def watching(options: Options) -> list[str]:
    """Return the options that only the program on each host serves, which starts the script."""
    watched = any(FAULTS[kind].watched for kind in options.fault_policies)
    names = [name for name in WATCHED if getattr(options, name) and name != "fault_policies"]
    return [*names, *(["fault_policies"] if watched else [])]


def _check_drain_notice(options: Options, notice: str | Sequence[str]) -> None:
    """Raise `OptionError` for a notice that no host could look for."""
    try:
        described(notice)
    except ValueError as error:
        # Without the value: a URL may have a password.
        raise OptionError(f"drain_notice: {error}") from None
    if options.enable_network_isolation and isinstance(notice, str) and notice.startswith("http"):
        raise OptionError(
            "drain_notice: a URL, and enable_network_isolation cuts the hosts off from it; give a file, or a command"
        )
    if options.environment.get(HostVariable.OBSERVER) == "off":
        raise OptionError(
            f"drain_notice: a host's observer looks for it, and {HostVariable.OBSERVER} is 'off'; leave that one out"
        )


def steering(options: Options, source: SourceCode | None, *, job_name: str | None) -> dict[str, Any]:
    """Return the hyperparameters that script mode always adds; a cloud backend adds `sagemaker_region` itself."""
    added: dict[str, Any] = {}
    if source is not None:
        added[Key.SUBMIT_DIRECTORY] = source.address
        added[Key.PROGRAM] = source.entry_point
    added[Key.LOG_LEVEL] = options.container_log_level
    for name, key in WATCHED.items():
        if (value := getattr(options, name)) not in (None, {}):
            added[key] = msgspec.to_builtins(value)
    if job_name is not None:
        added[Key.JOB_NAME] = job_name
    return added


def lay_out_hosts(groups: tuple[InstanceGroup, ...], distribution: Distribution) -> tuple[HostPlan, ...]:
    """Return the hosts of all groups, named in their order, each with its number of ranks. Pure."""
    names = iter(host_names(sum(group.instance_count for group in groups)))
    training_groups = distribution.instance_groups or ()
    hosts = []
    for group in groups:
        name, instance_type = group.instance_group_name, group.instance_type
        # Without names every group trains: `with_instance_groups` fills them in where there are helpers.
        trains = not training_groups or name in training_groups
        ranks = ranks_per_host(distribution.launcher, distribution.processes_per_host) if trains else 0
        helper = name == distribution.helpers
        hosts += [
            HostPlan(name=next(names), instance_type=instance_type, group=name, ranks=ranks, helper=helper)
            for _ in range(group.instance_count)
        ]
    return tuple(hosts)


def refuse(backend: str, refusals: dict[str, str]) -> None:
    """Raise one `UnsupportedError` that names every option a backend cannot serve; do nothing without refusals.

    `refusals` maps the option's name to the reason.
    """
    if refusals:
        lines = [f"{name}: {reason}" for name, reason in refusals.items()]
        raise UnsupportedError(f"{backend} cannot serve this job:\n  " + "\n  ".join(lines))


def _channels(channels: tuple[Channel, ...], hosts: tuple[HostPlan, ...]) -> tuple[Channel, ...]:
    """Return the channels with the groups that get them: the training groups, unless the channel names others.

    A helper reads no data. If it got a share of a sharded channel, nobody would train on that share.
    """
    groups = list(dict.fromkeys(host.group for host in hosts))
    for channel in channels:
        if unknown := set(channel.input.instance_groups or ()) - set(groups):
            raise InputError(
                f"channel {channel.name!r}: instance_groups: the job has no group {', '.join(sorted(unknown))}; it "
                f"has: {', '.join(groups)}"
            )
    training = tuple(dict.fromkeys(host.group for host in hosts if not host.helper))
    if len(training) == len(groups):
        return channels
    return tuple(
        channel
        # SageMaker's FileSystemDataSource cannot name groups, only its S3DataSource can.
        if channel.input.instance_groups is not None or channel.file_system is not None
        else msgspec.structs.replace(channel, input=msgspec.structs.replace(channel.input, instance_groups=training))
        for channel in channels
    )


def _mounted(channel: Channel, backend: str) -> Channel:
    """Return a channel of a file system with its folder: on own hosts it is mounted where its path says."""
    if channel.file_system is None:
        return channel
    folder = channel.file_system.directory_path if backend in OWN_HOSTS else None
    return msgspec.structs.replace(channel, path=folder)
