"""The arguments in an estimator's own signature, and the rules that they keep. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from herringbone.plan.option_errors import explain
from herringbone.plan.options.names import OWN_ARGUMENTS
from herringbone.plan.options.typed import InstanceGroup, Options
from herringbone.plan.texts import check_texts
from herringbone_contract.errors import HyperparameterError, OptionError
from herringbone_contract.hyperparameters import encode_values
from herringbone_contract.resources import HOMOGENEOUS_GROUP

# Estimators whose first argument is a version, as in AWS's SDK.
_VERSION_FIRST = ("TensorFlow", "HuggingFace")
# Libraries whose scripts start no ranks.
_ONE_PROCESS = ("SKLearn", "XGBoost")
# In JSON, where a backslash of the text is written twice.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The arguments in an estimator's own signature, as plain values.

    `distribution` is the dict that `parse` reads, or "auto". `model_dir` is TensorFlow's, the versions HuggingFace's.
    """

    entry_point: str | None = None
    source_dir: str | None = None
    image_uri: str | None = None
    instance_type: str | None = None
    instance_count: int | None = None
    hyperparameters: dict[str, Any] = {}
    distribution: dict[str, Any] | Literal["auto"] = {}
    model_dir: str | bool | None = None
    transformers_version: str | None = None
    pytorch_version: str | None = None
    tensorflow_version: str | None = None


@functools.cache
def names_of(estimator: str) -> frozenset[str]:
    """Return the names of the arguments and options of an estimator, by the name of its class."""
    own = OWN_ARGUMENTS.get(estimator, ())
    foreign = {name for names in OWN_ARGUMENTS.values() for name in names if name not in own}
    return frozenset({*Arguments.__struct_fields__, *Options.__struct_fields__} - foreign)


def check_values(hyperparameters: dict[str, Any]) -> dict[str, Any]:
    """Return hyperparameters. Raises `HyperparameterError` for a value that JSON cannot hold."""
    check_texts("hyperparameters, name", list(hyperparameters), error=HyperparameterError)
    for name, text in encode_values(hyperparameters).items():
        if _NUL.search(text):
            raise HyperparameterError(f"hyperparameter {name!r}: a NUL character, which no command line can pass")
    return hyperparameters


def instance_groups(options: Options, instance_type: object, instance_count: object) -> tuple[InstanceGroup, ...]:
    """Return the option `instance_groups`, or one group of `instance_type`. Raises `OptionError`."""
    if options.instance_groups is not None:
        if instance_type is not None or instance_count is not None:
            raise OptionError("instance_groups: excludes instance_type and instance_count; give one or the other")
        names = [group.instance_group_name for group in options.instance_groups]
        if not names or len(set(names)) < len(names):
            raise OptionError(f"instance_groups: names must be given once each, got {names}")
        return options.instance_groups
    if instance_type is None:
        raise OptionError("instance_type: missing; write for example instance_type='local_process'")
    fields = {"instance_type": instance_type, "instance_count": 1 if instance_count is None else instance_count}
    try:
        return (msgspec.convert({"instance_group_name": HOMOGENEOUS_GROUP, **fields}, InstanceGroup),)
    except msgspec.ValidationError as error:
        raise OptionError(explain(error, fields, InstanceGroup)) from None


def check_class(estimator: str, own: Mapping[str, Any], options: dict[str, Any]) -> None:
    """Raise `OptionError` for what one class alone refuses; take out of `options` what it accepts and does not need."""
    version = options.get("py_version")
    if estimator in _VERSION_FIRST and isinstance(version, str) and version.endswith((".py", ".sh")):
        raise OptionError(
            f"py_version: {version!r} is a script, and {estimator}'s first argument is py_version, as in SageMaker's"
            f" SDK; write entry_point={version!r}"
        )
    if estimator == "HuggingFace":
        if options.get("framework_version") is not None:
            raise OptionError("framework_version: HuggingFace has three; give transformers_version and pytorch_version")
        for name in OWN_ARGUMENTS["HuggingFace"]:
            if not isinstance(own.get(name, ""), str):
                raise OptionError(f"{name}: expected text such as '4.36.0', got {own[name]!r}")
        if "tensorflow_version" in own and "pytorch_version" in own:
            raise OptionError("tensorflow_version, pytorch_version: a job trains with one of them; leave the other out")
    model_dir = own.get("model_dir", "")
    if not (model_dir is False or isinstance(model_dir, str)):
        raise OptionError(f"model_dir: expected a path, an address or False, got {model_dir!r}")
    if estimator in _ONE_PROCESS:
        if (region := options.pop("image_uri_region", None)) is not None:
            raise OptionError(f"image_uri_region: {region!r}: the image is named by image_uri; leave this out")
        if own.get("distribution"):
            raise OptionError(
                f"distribution: {estimator}'s scripts run once on each host, and no strategy starts ranks of them; "
                "leave it out, or use Estimator"
            )


def check_together(arguments: Arguments, options: Options) -> None:
    """Raise `OptionError` for arguments that need a script, and for a job without a script and without an image."""
    for name in ("model_uri", "checkpoint_s3_uri", "output_path"):
        if getattr(options, name) == "":
            raise OptionError(f"{name}: the path is empty; give a path or an address, or leave it out")
    if arguments.entry_point is None:
        if arguments.image_uri is None:
            raise OptionError(
                "entry_point: missing; give the script to run, or image_uri for an image that has its own"
            )
        if arguments.source_dir is not None:
            raise OptionError("source_dir: given without entry_point; name the script in it to run")
        if options.git_config is not None:
            raise OptionError("git_config: given without entry_point; name the script of the repository to run")
        if options.include_secrets:
            raise OptionError("include_secrets: given without entry_point, so there is no code to include them in")
