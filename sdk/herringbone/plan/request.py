"""The request of a user as one value: made of arguments, stored, and changed for a rerun or a trial. Pure.

arguments of an estimator -- make_request --+
plan of an earlier job ---- request_of -----+-> JobRequest -- changed, replace --> JobRequest
AWS's members --- sagemaker.rebuild --------+       |
                                                    +-- make_plan --> JobPlan
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from herringbone.plan.arguments import (
    Arguments,
    check_class,
    check_together,
    check_values,
    instance_groups,
    names_of,
)
from herringbone.plan.destinations import parse_destinations
from herringbone.plan.inputs import Channel, local_path
from herringbone.plan.notify import absolute_notify
from herringbone.plan.options.names import OWN_ARGUMENTS
from herringbone.plan.options.strategy_names import AUTO, named_strategy
from herringbone.plan.options.typed import InstanceGroup, Options, changed_options, parse_options
from herringbone.plan.secrets import masked_options
from herringbone.plan.texts import check_name, check_texts, mapping_of, path_text
from herringbone_contract.constants import MASK, MODEL_DIR, SHARED_MODEL_DIR, HostVariable, Key
from herringbone_contract.distribution import Distribution, Framework, Launcher, parse
from herringbone_contract.errors import DistributionError, InputError, OptionError
from herringbone_contract.masking import masked_hyperparameters, masked_texts

# The class of the estimator -> the framework by whose rules its `distribution` is read.
DISTRIBUTION_RULES: dict[str, Framework] = {
    "PyTorch": "pytorch",
    "TensorFlow": "tensorflow",
    "MXNet": "mxnet",
    "HuggingFace": "huggingface",
}
_CLASSES = (*DISTRIBUTION_RULES, "Estimator", "SKLearn", "XGBoost")
_SSH = "ssh:"
_FOLDERS = ("checkpoint_s3_uri", "output_path", "model_uri")
# Changes add to these two; any other change replaces the earlier value.
_MERGED = ("hyperparameters", "environment")


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The request of a user: the arguments of an estimator and of its `fit`, checked one by one.

    >>> make_request("PyTorch", {"entry_point": "train.py", "instance_type": "local_process"}).options.max_run
    86400

    - `estimator` is the name of the class; for a class that a user wrote, of the one that it is made of.
    - Relative paths count from `folder`. A stored request has absolute ones.
    - `channels` are those of `fit`; `queue`: the job waits in line for GPUs that are taken.
    """

    estimator: str = "Estimator"
    arguments: Arguments = Arguments()
    options: Options = Options()
    channels: tuple[Channel, ...] = ()
    folder: str = ""
    queue: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values without secrets.

        Masked are environment variables and hyperparameters by their names, and in all texts the secrets of addresses
        (`postgres://me:secret@host`) and of `NAME=value` and `--name value`.
        """
        hyperparameters = masked_hyperparameters(self.arguments.hyperparameters)
        shown = msgspec.structs.replace(
            self,
            arguments=msgspec.structs.replace(self.arguments, hyperparameters=hyperparameters),
            options=masked_options(self.options),
        )
        # JSON turns tuples into lists, so that a request equals what its file gives back.
        fields: dict[str, Any] = json.loads(json.dumps(masked_texts(msgspec.to_builtins(shown, enc_hook=plain))))
        return fields

    def to_send(self) -> dict[str, Any]:
        """Return plain values with the secrets, without the part that only this Python can use: the session."""
        options = msgspec.structs.replace(self.options, sagemaker_session=None)
        values: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, options=options), enc_hook=plain)
        return values


def plain(value: object) -> object:
    """Return a number or text of a subclass as a plain one, as JSON writes it, such as NumPy's float64."""
    for kind in (float, int, str):
        if isinstance(value, kind):
            return kind(value)
    raise NotImplementedError


def parse_request(stored: object) -> JobRequest:
    """Return the request that `to_dict` or `to_send` gave; masked values stay masked. Raises `InputError`."""
    try:
        return msgspec.convert(stored, JobRequest)
    except msgspec.ValidationError as error:
        raise InputError(f"the request was written by another release of Herringbone: {error}") from error


def make_request(estimator: str, given: Mapping[str, Any]) -> JobRequest:
    """Return the request that the keyword arguments of an estimator make; `estimator` is the name of its class.

    >>> make_request("PyTorch", {"entry_point": "a.py", "instance_type": "local", "instance_count": 0})
    Traceback (most recent call last):
    herringbone_contract.errors.OptionError: instance_count: expected a whole number >= 1, got 0

    Reads no file, except modelparallel `parameters` given as a path. Raises `OptionError`, `DistributionError` or
    `HyperparameterError`.
    """
    names = names_of(estimator).intersection(Arguments.__struct_fields__)
    own = {name: value for name, value in given.items() if name in names and value is not None}
    rest = {name: value for name, value in given.items() if name not in names}
    check_class(estimator, own, rest)
    for name in ("entry_point", "source_dir", "image_uri"):
        own[name] = path_text(name, own.get(name))
    if own["image_uri"] is not None:
        check_name("image_uri", own["image_uri"])
    options = parse_options(rest)
    distribution = own.get("distribution")
    check_texts("distribution", distribution, error=DistributionError)
    if distribution != AUTO:
        typed = parse(named_strategy(distribution), framework=DISTRIBUTION_RULES.get(estimator))
        own["distribution"] = msgspec.to_builtins(typed)
    # Groups and hyperparameters are checked here and not at `plan`: the error then points at the wrong argument.
    groups = instance_groups(options, own.get("instance_type"), own.get("instance_count"))
    for group in groups:
        check_texts("instance_type", group.instance_type)
    own["hyperparameters"] = check_values(dict(mapping_of("hyperparameters", own.get("hyperparameters"))))
    request = JobRequest(estimator=estimator, arguments=Arguments(**own), options=options)
    check_together(request.arguments, options)
    if estimator == "SKLearn" and (count := sum(group.instance_count for group in groups)) > 1:
        raise OptionError(
            f"instance_count: {count}: scikit-learn does not train on several hosts; set instance_count=1"
        )
    return request


def keywords(request: JobRequest) -> dict[str, Any]:
    """Return the keyword arguments that differ from their defaults: `make_request` makes an equal request of them."""
    arguments, session = request.arguments, request.options.sagemaker_session
    return {
        **msgspec.to_builtins(msgspec.structs.replace(arguments, hyperparameters={})),
        **({"hyperparameters": arguments.hyperparameters} if arguments.hyperparameters else {}),
        **changed_options(request.options),
        **({} if session is None else {"sagemaker_session": session}),
    }


def changed(request: JobRequest, changes: Mapping[str, Any]) -> JobRequest:
    """Return a request with other arguments: hyperparameters and variables are added, all else is replaced.

    >>> request = make_request("PyTorch", {"entry_point": "a.py", "instance_type": "local"})
    >>> request = changed(request, {"hyperparameters": {"a": 1}})
    >>> changed(request, {"hyperparameters": {"b": 2}, "max_run": 60}).arguments.hyperparameters
    {'a': 1, 'b': 2}

    None takes an argument away. Raises as `make_request` does.
    """
    if not changes:
        return request
    given = keywords(request)
    for name, value in changes.items():
        is_added = name in _MERGED and isinstance(value, Mapping)
        given[name] = {**given.get(name, {}), **value} if is_added else value
    made = make_request(request.estimator, given)
    return msgspec.structs.replace(made, channels=request.channels, folder=request.folder, queue=request.queue)


def with_hyperparameters(request: JobRequest, values: dict[str, Any]) -> JobRequest:
    """Return a request with these hyperparameters and no others. Raises `HyperparameterError`."""
    arguments = msgspec.structs.replace(request.arguments, hyperparameters=check_values(values))
    return msgspec.structs.replace(request, arguments=arguments)


def with_options(request: JobRequest, **options: Any) -> JobRequest:
    """Return a request with some typed options in place of its own."""
    return msgspec.structs.replace(request, options=msgspec.structs.replace(request.options, **options))


def with_code(request: JobRequest, folder: str | None, script: str) -> JobRequest:
    """Return a request that runs a copy of the code: its folder, and the script in it; dependencies are in the copy."""
    arguments = msgspec.structs.replace(request.arguments, source_dir=folder, entry_point=script)
    return msgspec.structs.replace(with_options(request, dependencies=(), git_config=None), arguments=arguments)


def for_class(request: JobRequest, estimator: str) -> JobRequest:
    """Return a request for another class than the one that made it: a service's description names no class."""
    if estimator == request.estimator:
        return request
    arguments = request.arguments
    if estimator == "TensorFlow":
        values = dict(arguments.hyperparameters)
        # Every other job has this hyperparameter, so without one the user gave False.
        model_dir = values.pop("model_dir", False)
        arguments = msgspec.structs.replace(arguments, hyperparameters=values, model_dir=model_dir)
    return msgspec.structs.replace(request, estimator=estimator, arguments=arguments)


def absolute(request: JobRequest) -> JobRequest:
    """Return a request whose paths are valid in any folder. Code and dependencies are so in each stored request."""
    base, options = Path(request.folder), request.options

    def place(address: str | None) -> str | None:
        path = None if address is None else local_path(address, base=base)
        return address if path is None else str(path)

    def inventory(instance_type: str) -> str:
        name = instance_type.removeprefix(_SSH)
        return f"{_SSH}{base / name}" if name != instance_type else instance_type

    tensorboard, groups, instance_type = (
        options.tensorboard_output_config,
        options.instance_groups,
        request.arguments.instance_type,
    )
    if tensorboard is not None:
        tensorboard = msgspec.structs.replace(tensorboard, s3_output_path=place(tensorboard.s3_output_path))
    if groups is not None:
        groups = tuple(msgspec.structs.replace(group, instance_type=inventory(group.instance_type)) for group in groups)
    if instance_type is not None:
        instance_type = inventory(instance_type)
    channels = tuple(
        channel
        if channel.path is None
        else msgspec.structs.replace(channel, input=msgspec.structs.replace(channel.input, s3_data=channel.path))
        for channel in request.channels
    )
    return msgspec.structs.replace(
        with_options(
            request,
            **{name: place(getattr(options, name)) for name in _FOLDERS},
            tensorboard_output_config=tensorboard,
            instance_groups=groups,
            track=tuple(str(destination) for destination in parse_destinations(options.track, base=base)),
            notify=absolute_notify(options.notify, base),
        ),
        arguments=msgspec.structs.replace(request.arguments, instance_type=instance_type),
        channels=channels,
    )


def request_of(plan: JobRequest) -> JobRequest:
    """Return the request of an earlier job's plan, which is one with members more; its paths are absolute."""
    options, arguments = plan.options, plan.arguments
    estimator = plan.estimator
    if estimator not in _CLASSES:
        # An earlier release stored the name of a user's class.
        versions = any(getattr(arguments, name) is not None for name in OWN_ARGUMENTS["HuggingFace"])
        estimator = "HuggingFace" if versions else "Estimator" if arguments.model_dir is None else "TensorFlow"
    # Added to a job with a prediction, which another job may not have.
    environment = {k: v for k, v in options.environment.items() if (k, v) != (HostVariable.COMPARE, "on")}
    model = options.model_channel_name if options.model_uri is not None else None
    return absolute(
        JobRequest(
            estimator=estimator,
            arguments=arguments,
            options=msgspec.structs.replace(options, environment=environment),
            channels=tuple(channel for channel in plan.channels if channel.name != model),
            folder=plan.folder,
            queue=plan.queue,
        )
    )


def groups_of(request: JobRequest) -> tuple[InstanceGroup, ...]:
    """Return the groups of the hosts: the option `instance_groups`, or one group of `instance_type`."""
    return instance_groups(request.options, request.arguments.instance_type, request.arguments.instance_count)


def distribution_of(request: JobRequest) -> Distribution:
    """Return the typed strategy; that of one process on each host while "auto" has chosen none."""
    given = request.arguments.distribution
    strategy = None if isinstance(given, str) else given or None
    return parse(strategy, framework=DISTRIBUTION_RULES.get(request.estimator))


def added_hyperparameters(request: JobRequest, launcher: Launcher) -> dict[str, Any]:
    """Return the hyperparameters that the estimator's class adds to every job."""
    if request.estimator == "MXNet" and launcher is Launcher.PARAMETER_SERVER:
        return {Key.PARAMETER_SERVER_FRAMEWORK: "mxnet"}
    if request.estimator != "TensorFlow" or request.arguments.model_dir is False:
        return {}
    default = MODEL_DIR if launcher is Launcher.MPI else SHARED_MODEL_DIR
    return {"model_dir": default if request.arguments.model_dir is None else request.arguments.model_dir}


def base_job_name(request: JobRequest) -> str:
    """Return the text with which a made job name begins: the option, or the script's or the image's name."""
    arguments = request.arguments
    if request.options.base_job_name is not None:
        return request.options.base_job_name
    return Path(arguments.entry_point or (arguments.image_uri or "job").rpartition("/")[2].partition(":")[0]).stem


def refuse_masked(job_name: str, request: JobRequest, *, searches: bool = False) -> None:
    """Raise `InputError` for values that are stored masked: nobody but the user has them.

    With `searches`, the name is that of a tuning job that goes on, which no flag of a command gives them to.
    """
    names = sorted(_masked_names(keywords(request)))
    if names:
        variables = [name.removeprefix("environment.") for name in names if name.startswith("environment.")]
        flags = "".join(f" --env {name}" for name in variables)
        hint = f" (on the command line:{flags}, which takes the value from your environment)" if flags else ""
        job = f"{'tuning ' * searches}job {job_name}"
        hint = f" in Python: HyperparameterTuner.attach({job_name!r}, environment={{...}})" if searches else hint
        raise InputError(
            f"{job}: {', '.join(names)}: stored masked, because it looks like a secret; give it again{hint}"
        )


def _masked_names(value: Any, name: str = "") -> list[str]:
    if isinstance(value, str):
        return [name] if MASK in value else []
    if isinstance(value, Mapping):
        items = [(f"{name}.{key}" if name else str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{name}[{position}]", item) for position, item in enumerate(value)]
    else:
        return []
    return [found for path, item in items for found in _masked_names(item, path)]
