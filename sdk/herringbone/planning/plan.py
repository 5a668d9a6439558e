"""From what an estimator was given to what will run: `JobPlan`, made by a pure function.

    estimator's arguments -> JobRequest --make_plan--> JobPlan --backend.submit--> a running job

A plan can be printed, compared and stored. Making one starts nothing and writes nothing.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from herringbone.code.source import SourceCode
from herringbone.estimators.inputs import Channel
from herringbone.estimators.options import InstanceGroup, Options, explain
from herringbone_contract import reduce_servers
from herringbone_contract.constants import Key, masked
from herringbone_contract.distribution import Distribution, Launcher, check_layout, with_instance_groups
from herringbone_contract.errors import DistributionError, InputError, OptionError, UnsupportedError
from herringbone_contract.hyperparameters import check_limits, encode, encode_values
from herringbone_contract.masking import masked_hyperparameters
from herringbone_contract.resources import HOMOGENEOUS_GROUP, host_names

_SHOWN_CHARS = 100


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An estimator's arguments, parsed. `arguments` are the same as the user gave them, to build the estimator again.

    `source` is None for an image that brings its own program.
    """

    estimator: str
    arguments: dict[str, Any]
    source: SourceCode | None
    image_uri: str | None
    groups: tuple[InstanceGroup, ...]
    hyperparameters: dict[str, Any]
    distribution: Distribution
    options: Options


class HostPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host. `ranks` is None where the host itself counts them: one per GPU, or one; a `helper` has none."""

    name: str
    instance_type: str
    group: str
    ranks: int | None
    helper: bool = False


class JobPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a backend needs to start a job.

    >>> print(estimator.plan("data"))                                   # doctest: +SKIP
    >>> estimator.plan("data").to_dict()["hyperparameters"]["epochs"]   # doctest: +SKIP
    '3'

    `unused` names the options that were given and mean nothing to this backend. `request` is what a service would be
    sent, unmasked, with `${...}` for what only the account can tell; None where no service runs the job. Paths are
    absolute, or relative to `folder`, where the plan was made. `fewer_hosts` are the counts of hosts, the greatest
    first, that the job may go on with when it begins anew and not all can be had.
    """

    job_name: str
    backend: str
    estimator: str
    launcher: str
    hosts: tuple[HostPlan, ...]
    source: SourceCode | None
    channels: tuple[Channel, ...]
    hyperparameters: dict[str, str]
    options: Options
    folder: str
    unused: tuple[str, ...] = ()
    arguments: dict[str, Any] = {}
    request: dict[str, Any] | None = None
    fewer_hosts: tuple[int, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """What the user adds to each rank's environment, unmasked."""
        return self.options.environment

    @property
    def told_name(self) -> str:
        """The job's name as its script knows it, in every attempt the same."""
        told = self.hyperparameters.get(Key.JOB_NAME)
        return self.job_name if told is None else str(json.loads(told))

    @property
    def advice(self) -> str | None:
        """What would be better about a plan that is not wrong."""
        helpers = sum(host.helper for host in self.hosts)
        return reduce_servers.advice(training_hosts=sum(host.ranks != 0 for host in self.hosts), helpers=helpers)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON's plain values, secret-sounding variables and hyperparameters masked."""
        shown = msgspec.structs.replace(
            self.options,
            environment=masked(self.environment),
            extra_request=_masked_request(self.options.extra_request),
            git_config=None if self.options.git_config is None else self.options.git_config.masked,
            sagemaker_session=None,
        )
        arguments = dict(self.arguments)
        if given := arguments.get("hyperparameters"):
            arguments["hyperparameters"] = masked_hyperparameters(given)
        plan = msgspec.structs.replace(
            self,
            options=shown,
            request=_masked_request(self.request),
            hyperparameters=masked_hyperparameters(self.hyperparameters),
            arguments=arguments,
        )
        plain: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(plan)))
        return plain

    def __str__(self) -> str:
        return "\n".join(f"{name + ':':<18} {value}" for name, value in _described(self))


def parse_plan(raw: object) -> JobPlan:
    """Read back what `JobPlan.to_dict` gave; masked values stay masked."""
    return msgspec.convert(raw, JobPlan)


def make_plan(
    request: JobRequest,
    *,
    channels: tuple[Channel, ...],
    job_name: str,
    backend: str,
    folder: str,
) -> JobPlan:
    """Lay out hosts and ranks, encode the hyperparameters, and check the rules that need all of it.

    Pure. Raises `DistributionError`, `HyperparameterError`, `InputError` or `OptionError`.
    """
    distribution = request.distribution
    named = [group.instance_group_name for group in request.options.instance_groups or ()]
    distribution = with_instance_groups(distribution, named)
    hosts = lay_out_hosts(request.groups, distribution)
    training = [host for host in hosts if host.ranks != 0]
    if training[0].ranks is not None:
        check_layout(distribution, hosts=len(training), processes_per_host=training[0].ranks)
    hyperparameters = {
        **encode_values(request.hyperparameters),
        **encode(distribution, instance_type=training[0].instance_type),
        **encode_values(steering(request, job_name=job_name)),
    }
    check_limits(hyperparameters)
    return JobPlan(
        job_name=job_name,
        backend=backend,
        estimator=request.estimator,
        launcher=distribution.launcher.value,
        hosts=hosts,
        source=request.source,
        channels=_channels(channels, hosts),
        hyperparameters=hyperparameters,
        options=request.options,
        folder=folder,
        arguments=request.arguments,
        fewer_hosts=_fewer_hosts(request, distribution, hosts),
    )


def _fewer_hosts(request: JobRequest, distribution: Distribution, hosts: tuple[HostPlan, ...]) -> tuple[int, ...]:
    """Return the counts below the job's own, down to `min_instance_count`, that its distribution can be laid out on."""
    least = request.options.min_instance_count
    if least is None:
        return ()
    if len(request.groups) > 1:
        raise OptionError("min_instance_count: a job of several instance_groups keeps its hosts; leave it out")
    if least > len(hosts):
        raise OptionError(f"min_instance_count: {least} is more than instance_count, {len(hosts)}")
    ranks = hosts[0].ranks
    found = []
    for count in range(len(hosts) - 1, least - 1, -1):
        try:
            if ranks is not None:
                check_layout(distribution, hosts=count, processes_per_host=ranks)
        except DistributionError as error:
            if count == least:
                raise DistributionError(f"min_instance_count: {least}: {error}") from None
        else:
            found.append(count)
    return tuple(found)


def steering(request: JobRequest, *, job_name: str | None) -> dict[str, Any]:
    """Return the hyperparameters that script mode always adds; `sagemaker_region` is a cloud backend's to add."""
    added: dict[str, Any] = {}
    if request.source is not None:
        added[Key.SUBMIT_DIRECTORY] = request.source.address
        added[Key.PROGRAM] = request.source.entry_point
    added[Key.LOG_LEVEL] = request.options.container_log_level
    if job_name is not None:
        added[Key.JOB_NAME] = job_name
    return added


def instance_groups(
    options: Options, instance_type: str | None, instance_count: int | None
) -> tuple[InstanceGroup, ...]:
    """Return the groups of hosts: those given, or one made of `instance_type` and `instance_count`."""
    if options.instance_groups is not None:
        if instance_type is not None or instance_count is not None:
            raise OptionError("instance_groups: excludes instance_type and instance_count; give one or the other")
        names = [group.instance_group_name for group in options.instance_groups]
        if not names or len(set(names)) < len(names):
            raise OptionError(f"instance_groups: names must be given once each, got {names}")
        return options.instance_groups
    if instance_type is None:
        raise OptionError("instance_type: missing; write for example instance_type='local_process'")
    given = {"instance_type": instance_type, "instance_count": 1 if instance_count is None else instance_count}
    try:
        return (msgspec.convert({"instance_group_name": HOMOGENEOUS_GROUP, **given}, InstanceGroup),)
    except msgspec.ValidationError as error:
        raise OptionError(explain(error, given)) from None


def lay_out_hosts(groups: tuple[InstanceGroup, ...], distribution: Distribution) -> tuple[HostPlan, ...]:
    """Return the hosts of the groups, named in their order, with the ranks that a distribution gives each. Pure."""
    names = iter(host_names(sum(group.instance_count for group in groups)))
    chosen = distribution.instance_groups or ()
    hosts = []
    for group in groups:
        name, instance_type = group.instance_group_name, group.instance_type
        trains = not chosen or name in chosen
        ranks = _ranks_per_host(distribution) if trains else 0
        helper = name == distribution.helpers
        hosts += [
            HostPlan(name=next(names), instance_type=instance_type, group=name, ranks=ranks, helper=helper)
            for _ in range(group.instance_count)
        ]
    return tuple(hosts)


def _channels(channels: tuple[Channel, ...], hosts: tuple[HostPlan, ...]) -> tuple[Channel, ...]:
    """Return the channels with the groups that they go to: where hosts help, to those that train, unless one says more.

    A helper would read nothing of it, and of data that is shared out nobody would read the helper's share.
    """
    groups = list(dict.fromkeys(host.group for host in hosts))
    for channel in channels:
        if strangers := set(channel.input.instance_groups or ()) - set(groups):
            raise InputError(
                f"channel {channel.name!r}: instance_groups: the job has no group {', '.join(sorted(strangers))}; it "
                f"has: {', '.join(groups)}"
            )
    training = tuple(dict.fromkeys(host.group for host in hosts if not host.helper))
    if len(training) == len(groups):
        return channels
    return tuple(
        channel
        if channel.input.instance_groups is not None or channel.file_system is not None
        else msgspec.structs.replace(channel, input=msgspec.structs.replace(channel.input, instance_groups=training))
        for channel in channels
    )


def _ranks_per_host(distribution: Distribution) -> int | None:
    if distribution.launcher is Launcher.MPI:
        return distribution.processes_per_host or 1
    if distribution.launcher is Launcher.DATA_PARALLEL:
        return distribution.processes_per_host
    if distribution.launcher is Launcher.TORCH_DISTRIBUTED:
        return None
    return 1


def refuse(backend: str, refusals: dict[str, str]) -> None:
    """Raise one `UnsupportedError` that names every wish a backend cannot serve."""
    if refusals:
        lines = [f"{name}: {why}" for name, why in refusals.items()]
        raise UnsupportedError(f"{backend} cannot serve this job:\n  " + "\n  ".join(lines))


def _masked_request(request: dict[str, Any] | None) -> dict[str, Any] | None:
    if request is None:
        return None
    shown = dict(request)
    if isinstance(environment := request.get("Environment"), dict):
        shown["Environment"] = masked(environment)
    if isinstance(hyperparameters := request.get("HyperParameters"), dict):
        shown["HyperParameters"] = masked_hyperparameters(hyperparameters)
    return shown


def _described(plan: JobPlan) -> list[tuple[str, str]]:
    rows = [("job", plan.job_name), ("runs on", plan.backend), ("launcher", plan.launcher)]
    for host in plan.hosts:
        group = "" if host.group == HOMOGENEOUS_GROUP else f", group {host.group}"
        rows.append((f"host {host.name}", f"{_role(host)}{group}"))
    if plan.source is not None:
        place = plan.source.revision or plan.source.archive or plan.source.folder
        rows.append(("script", f"{plan.source.entry_point} in {place}"))
        rows += [("dependency", path) for path in plan.source.dependencies]
    for channel in plan.channels:
        sharded = ", every host its share of the files" if channel.sharded else ""
        rows.append((f"channel {channel.name}", f"{channel.path or channel.input.s3_data}{sharded}"))
    for name, value in sorted(masked_hyperparameters(plan.hyperparameters).items()):
        shown = value if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]}... ({len(value)} characters)"
        rows.append(("hyperparameter", f"{name} = {shown}"))
    rows += [("environment", f"{name}={value}") for name, value in sorted(masked(plan.environment).items())]
    rows += [("metric", f"{metric.name} from {metric.regex}") for metric in plan.options.metric_definitions]
    rows.append(("limit", f"{plan.options.max_run} s"))
    if plan.request is not None and "script" in plan.request:
        rows += [("batch script", line) for line in plan.request["script"].splitlines()]
    if plan.advice is not None:
        rows.append(("advice", plan.advice))
    if plan.unused:
        rows.append(("unused", f"not used by {plan.backend}: {', '.join(plan.unused)}"))
    return rows


def _role(host: HostPlan) -> str:
    if host.helper:
        return "helper, sums gradients"
    if host.ranks is None:
        return "one rank per GPU, or one"
    return f"{host.ranks} rank{'s' * (host.ranks != 1)}"
