"""Convert SageMaker's flat keyword arguments to one typed, frozen struct.

The names are those of `sagemaker.estimator.EstimatorBase` 2.x, so that an old script runs unchanged. A backend decides
when a plan is made which of the options it serves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from herringbone.aws.fields import TAGS, UNCOMPRESSED, Member, plain_type, structs
from herringbone.plan.destinations import parse_destinations
from herringbone.plan.git import GitConfig, check_git_config
from herringbone.plan.notify import Notify, check_notify, written_in_full
from herringbone.plan.option_errors import explain, unknown_option
from herringbone.plan.options.environment import check_environment
from herringbone.plan.options.expressions import check_faults, check_metrics, check_policies
from herringbone.plan.options.kubernetes import KubernetesSettings, check_kubernetes_settings
from herringbone.plan.options.names import (
    ESTIMATOR_ARGUMENTS,
    HUGGING_FACE_VERSIONS,
    LEFT_OUT,
    RENAMED,
    refuse_left_out,
)
from herringbone.plan.options.slurm import SlurmSettings, check_slurm_settings
from herringbone.plan.options.words import InputMode, LogAction, RepositoryAccess
from herringbone.plan.texts import check_texts
from herringbone.system.times import parse_span
from herringbone_contract.checkpoint.keeping import Keep
from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import OptionError

Positive = Annotated[int, msgspec.Meta(ge=1)]
# Ten years: a limit behind the calendar's end would fail the job's controller.
MaxSeconds = Annotated[int, msgspec.Meta(ge=1, le=315_360_000)]
# More hosts than any cluster has: a plan lists them, and a mistyped number must not fill the memory.
Hosts = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Dollars = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
DAY_SECONDS = 86_400
_IMAGE = "AlgorithmSpecification.TrainingImageConfig"


class MetricDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One metric: its name, and a regular expression whose first group is the value."""

    name: str = msgspec.field(name="Name")
    regex: str = msgspec.field(name="Regex")


class InstanceGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hosts of one type with one role: `InstanceGroup("helpers", "local_process", 2)`."""

    instance_group_name: str
    instance_type: str
    instance_count: Hosts


class TensorBoardOutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place of TensorBoard's event files: `TensorBoardOutputConfig("runs/tensorboard")`.

    The script writes them to /opt/ml/output/tensorboard, or on ml to `container_local_output_path`.
    """

    s3_output_path: str
    container_local_output_path: str | None = None


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of an estimator, converted and checked. `declared` has the text of each and the types as written.

    An option that CreateTrainingJob has, too, names its member.

    >>> parse_options({"max_run": 3600}).max_run
    3600

    Times are seconds, `volume_size` is GB.
    """

    # The hosts, and how long they may run.
    instance_groups: Annotated[
        tuple[InstanceGroup, ...] | None,
        Member(
            "ResourceConfig.InstanceGroups",
            **structs(
                instance_group_name="InstanceGroupName", instance_type="InstanceType", instance_count="InstanceCount"
            ),
        ),
    ] = None
    # Defaults are those of AWS's SDK: a day, 30 GB, and logging.INFO (20) below.
    max_run: Annotated[MaxSeconds, Member("StoppingCondition.MaxRuntimeInSeconds")] = DAY_SECONDS
    max_wait: Annotated[MaxSeconds | None, Member("StoppingCondition.MaxWaitTimeInSeconds")] = None
    gpus: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    use_spot_instances: Annotated[bool, Member("EnableManagedSpotTraining", alone=True)] = False
    max_retry_attempts: Annotated[Positive | None, Member("RetryStrategy.MaximumRetryAttempts")] = None
    min_instance_count: Positive | None = None
    keep_global_batch: bool = False
    # None: where they can. True refuses a job whose machines cannot.
    retry_without_client: bool | None = None
    hang_timeout: NotNegative | None = None
    check_replicas_every: Positive | None = None
    loss_spike_factor: Annotated[float, msgspec.Meta(gt=1.0)] | None = None
    idle_timeout: MaxSeconds | None = None
    max_cost: Dollars | None = None
    dollars_per_hour: Dollars | None = None
    # Regular expression -> action, and kind of fault -> answer: see `controller.retry.Policies`.
    log_policies: dict[str, LogAction] = {}
    fault_policies: dict[str, str] = {}
    # A file, a URL, or the words of a command; `herringbone_contract.events.drain` has the rule.
    drain_notice: str | tuple[str, ...] | None = None
    keep_alive_period_in_seconds: Annotated[
        NotNegative | None, Member("ResourceConfig.KeepAlivePeriodInSeconds", alone=True)
    ] = None
    volume_size: Annotated[Positive, Member("ResourceConfig.VolumeSizeInGB", alone=True)] = 30
    volume_kms_key: Annotated[str | None, Member("ResourceConfig.VolumeKmsKeyId")] = None
    training_plan: Annotated[str | None, Member("ResourceConfig.TrainingPlanArn", alone=True)] = None
    instance_placement_config: Annotated[
        dict[str, Any] | None, Member("ResourceConfig.InstancePlacementConfig", alone=True)
    ] = None
    enable_infra_check: Annotated[bool | None, Member("InfraCheckConfig.EnableInfraCheck")] = None
    enable_remote_debug: Annotated[bool | None, Member("RemoteDebugConfig.EnableRemoteDebug", alone=True)] = None
    check_memory: bool = True
    check_time: bool = True

    # Input and output.
    input_mode: Annotated[InputMode, Member("AlgorithmSpecification.TrainingInputMode")] = "File"
    model_uri: str | None = None
    model_channel_name: str = "model"
    checkpoint_s3_uri: Annotated[str | None, Member("CheckpointConfig.S3Uri")] = None
    checkpoint_local_path: Annotated[str | None, Member("CheckpointConfig.LocalPath", needs="checkpoint_s3_uri")] = None
    keep_checkpoints: Keep | None = None
    # None: where the job can restart. A number: after so many steps.
    checkpoint_memory: bool | Positive | None = None
    output_path: Annotated[str | None, Member("OutputDataConfig.S3OutputPath")] = None
    output_kms_key: Annotated[str | None, Member("OutputDataConfig.KmsKeyId")] = None
    disable_output_compression: Annotated[bool, Member("OutputDataConfig.CompressionType", **UNCOMPRESSED)] = False
    tensorboard_output_config: Annotated[
        TensorBoardOutputConfig | None,
        Member(
            "TensorBoardOutputConfig", **structs(s3_output_path="S3OutputPath", container_local_output_path="LocalPath")
        ),
    ] = None

    # The script and its environment.
    dependencies: tuple[str, ...] = ()
    include_secrets: tuple[str, ...] = ()
    git_config: GitConfig | None = None
    code_location: str | None = None
    container_log_level: int = 20
    container_entry_point: Annotated[tuple[str, ...] | None, Member("AlgorithmSpecification.ContainerEntrypoint")] = (
        None
    )
    container_arguments: Annotated[tuple[str, ...] | None, Member("AlgorithmSpecification.ContainerArguments")] = None
    shm_size: int | str | None = None
    slurm: SlurmSettings | None = None
    kubernetes: KubernetesSettings | None = None
    bake_requirements: bool = False
    environment: Annotated[dict[str, str], Member("Environment")] = {}
    framework_version: str | None = None
    py_version: str | None = None

    # The job's name, and values read from its log.
    base_job_name: str | None = None
    tags: Annotated[tuple[dict[str, str], ...] | dict[str, str] | None, Member("Tags", **TAGS)] = None
    metric_definitions: Annotated[tuple[MetricDefinition, ...], Member("AlgorithmSpecification.MetricDefinitions")] = ()
    track: tuple[str, ...] = ()
    notify: tuple[Notify, ...] = ()

    # The account, the network and the registry.
    role: Annotated[str | None, Member("RoleArn", alone=True)] = None
    sagemaker_session: Any = None
    enable_session_tag_chaining: Annotated[
        bool | None, Member("SessionChainingConfig.EnableSessionTagChaining", alone=True)
    ] = None
    subnets: Annotated[tuple[str, ...] | None, Member("VpcConfig.Subnets", needs="security_group_ids", alone=True)] = (
        None
    )
    security_group_ids: Annotated[
        tuple[str, ...] | None, Member("VpcConfig.SecurityGroupIds", needs="subnets", alone=True)
    ] = None
    encrypt_inter_container_traffic: Annotated[bool, Member("EnableInterContainerTrafficEncryption")] = False
    enable_network_isolation: Annotated[bool, Member("EnableNetworkIsolation")] = False
    training_repository_access_mode: Annotated[
        RepositoryAccess | None, Member(f"{_IMAGE}.TrainingRepositoryAccessMode", alone=True)
    ] = None
    training_repository_credentials_provider_arn: Annotated[
        str | None,
        Member(
            f"{_IMAGE}.TrainingRepositoryAuthConfig.TrainingRepositoryCredentialsProviderArn",
            needs="training_repository_access_mode",
            alone=True,
        ),
    ] = None
    extra_request: dict[str, Any] | None = None


# Texts that may have line breaks: they travel as JSON, are variables, or are words of a program in a container.
_FREE_TEXTS = (
    "environment",
    "container_entry_point",
    "container_arguments",
    "extra_request",
    "metric_definitions",
    "log_policies",
)
_FINDERS = {
    "idle": "idle_timeout",
    "loss_spike": "loss_spike_factor",
    "replica_mismatch": "check_replicas_every",
    "drain": "drain_notice",
}
# Times in seconds, which may be written as text with units.
TIMES = ("max_run", "max_wait", "hang_timeout", "idle_timeout", "keep_alive_period_in_seconds")
_SIZE = re.compile(r"([0-9]{1,18})([kmg]?)b?", re.IGNORECASE)
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30}


def parse_options(raw: Mapping[str, Any]) -> Options:
    """Turn keyword arguments into `Options`.

    >>> parse_options({"max_runs": 60})
    Traceback (most recent call last):
    herringbone_contract.errors.OptionError: max_runs: no such option; did you mean max_run?

    Raises `OptionError` for an unknown name, a wrong type or a value out of range, and `UnsupportedError` for an
    option of SDK v2 that switches on a feature Herringbone does not have.
    """
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name in LEFT_OUT:
            refuse_left_out(name, value)
        elif name in Options.__struct_fields__:
            # AWS's defaults are None, so None means that the option is not set.
            if value is not None:
                # Before the conversion, which cannot quote a text that is no UTF-8.
                _check_text(name, value)
                values[name] = _written_short(name, value)
        else:
            raise OptionError(unknown_option(name, [*ESTIMATOR_ARGUMENTS, *Options.__struct_fields__], RENAMED))
    # Any object serves as a session; msgspec could not convert it.
    session = values.pop("sagemaker_session", None)
    # `from_attributes` accepts objects of AWS's SDK, such as its InstanceGroup.
    try:
        options = msgspec.convert(values, Options, from_attributes=True)
        _check_all_texts(options)
    except msgspec.ValidationError as error:
        raise OptionError(explain(error, values, Options)) from None
    except (UnicodeEncodeError, RecursionError):
        # msgspec's own, for half of a character and for endless nesting; they do not name the option.
        raise OptionError(
            "options: a value has half of a character (a lone surrogate), or is nested too deeply"
        ) from None
    options = msgspec.structs.replace(options, sagemaker_session=session)
    check_environment(options.environment)
    if options.shm_size is not None:
        size_in_bytes("shm_size", options.shm_size)
    if options.git_config is not None:
        check_git_config(options.git_config)
    if options.slurm is not None:
        check_slurm_settings(options.slurm)
    if options.kubernetes is not None:
        check_kubernetes_settings(options.kubernetes)
    check_metrics([(metric.name, metric.regex) for metric in options.metric_definitions])
    check_policies(options.log_policies)
    check_faults(options.fault_policies)
    if options.track:
        parse_destinations(options.track, base=Path())
    check_notify(options.notify)
    _check_together(options)
    return options


def text_options() -> frozenset[str]:
    """Return the names of the options and arguments whose values are text, whatever the text looks like.

    >>> "framework_version" in text_options(), "max_run" in text_options()
    (True, False)
    """
    types = {field.name: field.type for field in msgspec.structs.fields(Options)}
    texts = {name for name, kind in types.items() if plain_type(kind) in (str, str | None)}
    return frozenset(texts | {"entry_point", "source_dir", "image_uri", "instance_type", *HUGGING_FACE_VERSIONS})


def _written_short(name: str, value: Any) -> Any:
    """Return a value that may be written short as it is written in full: a time with units, one destination."""
    if isinstance(value, str):
        if name in TIMES:
            return seconds(name, value)
        if name == "track":
            return [value]
    return written_in_full(value) if name == "notify" else value


def _check_text(name: str, value: object) -> None:
    if name not in _FREE_TEXTS:
        check_texts(name, value, secret=name in ("git_config", "track", "notify"))


def _check_all_texts(options: Options) -> None:
    # Again after the conversion: these may have been objects, such as an InstanceGroup.
    for name, value in changed_options(options).items():
        _check_text(name, value)
    for name in ("container_entry_point", "container_arguments"):
        if any("\0" in word for word in getattr(options, name) or ()):
            raise OptionError(f"{name}: a word holds a NUL character, which no program can be given")


def seconds(option: str, text: str) -> int:
    """Return the seconds of a time with units.

    >>> seconds("max_run", "1h30m"), seconds("max_run", "2d")
    (5400, 172800)
    """
    span = parse_span(text)
    if span is None:
        raise OptionError(f"{option}: {text!r} is no time; give seconds as a number, or text with units: '1h30m', '2d'")
    return span


def size_in_bytes(option: str, size: int | str) -> int:
    """Return the bytes of a size that is written as in Docker and in AWS's local mode.

    >>> size_in_bytes("shm_size", "2g"), size_in_bytes("shm_size", "64M"), size_in_bytes("shm_size", 1024)
    (2147483648, 67108864, 1024)
    """
    match = _SIZE.fullmatch(str(size))
    if match is None or int(match[1]) == 0:
        raise OptionError(f"{option}: {size!r} is not a size; give bytes, or a number with k, m or g: '512m'")
    return int(match[1]) << _SHIFTS[match[2].lower()]


def changed_options(options: Options) -> dict[str, Any]:
    """Return the options that differ from their default, as plain JSON values."""
    # A session can be any object, which JSON cannot hold.
    plain = msgspec.to_builtins(msgspec.structs.replace(options, sagemaker_session=None))
    assert isinstance(plain, dict)
    return plain


def _check_together(options: Options) -> None:
    # Without spot instances, `max_wait` is the time in a line, which may be shorter than the job.
    if options.use_spot_instances and options.max_wait is not None and options.max_wait < options.max_run:
        raise OptionError(
            f"max_wait: {options.max_wait} s is less than max_run, {options.max_run} s; it counts waiting and running"
        )
    if options.model_uri is None and options.model_channel_name != Options().model_channel_name:
        raise OptionError("model_channel_name: names the channel of model_uri, and model_uri is missing; give it, too")
    if options.keep_checkpoints is not None:
        _check_sent(options, "keep_checkpoints", [options.keep_checkpoints.metric])
    for kind, option in _FINDERS.items():
        if kind in options.fault_policies and getattr(options, option) is None:
            raise OptionError(f"fault_policies: {kind!r} is what {option} finds, and {option} is missing; give it, too")
    if {"nan_loss", "loss_spike"} & options.fault_policies.keys():
        losses = [each.name for each in options.metric_definitions if "loss" in each.name.lower()]
        _check_sent(options, "fault_policies", losses)
    if options.idle_timeout and options.environment.get(HostVariable.OBSERVER) == "off":
        raise OptionError(
            f"idle_timeout: a host's observer measures, and {HostVariable.OBSERVER} is 'off'; leave it out"
        )
    if (options.subnets is None) != (options.security_group_ids is None):
        raise OptionError("subnets, security_group_ids: give both or neither")


def _check_sent(options: Options, option: str, metrics: Sequence[str | None]) -> None:
    """Refuse metrics that no host sees: a controller reads them from the log."""
    for name in {each.name for each in options.metric_definitions} & set(metrics):
        raise OptionError(
            f"{option}: metric {name!r} is read from the log by metric_definitions, after the hosts have decided; send"
            " it by herringbone.log_metrics, or by a logger, under a name of its own"
        )
    if options.environment.get(HostVariable.OBSERVER) == "off":
        raise OptionError(
            f"{option}: a host's observer looks for it, and {HostVariable.OBSERVER} is 'off'; leave that variable out"
        )
