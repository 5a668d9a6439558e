"""Take the arguments of a new estimator from the plan of an earlier job. Pure, except for `earlier_settings`.

    stored plan -> settings_of + inputs_of -> merged with the user's changes -> an estimator's arguments

Paths become absolute, because the earlier job may have been planned in another folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from herringbone.plan.inputs import FileSystemInput, TrainingInput, local_path
from herringbone.plan.options.typed import changed_options
from herringbone.plan.plan import JobPlan
from herringbone.records.checkpoints import job_code, resumed
from herringbone.records.home import find_home
from herringbone_contract.constants import MASK, HostVariable
from herringbone_contract.errors import InputError, OptionError

_FOLDERS = ("checkpoint_s3_uri", "output_path", "model_uri")
_SSH = "ssh:"
# Changes add to these two; any other change replaces the earlier value.
_MERGED = ("hyperparameters", "environment")


def settings_of(plan: JobPlan, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constructor's arguments of a job; `arguments` are those of its own signature."""
    settings = {**arguments, **changed_options(plan.options)}
    if settings.get("environment", {}).get(HostVariable.COMPARE) == "on":
        # Added to a job with a prediction, which the new job may not have.
        settings["environment"] = {k: v for k, v in settings["environment"].items() if k != HostVariable.COMPARE}
    folder = Path(plan.folder)
    for name in _FOLDERS:
        if settings.get(name) is not None:
            path = local_path(settings[name], base=folder)
            settings[name] = settings[name] if path is None else str(path)
    if (config := settings.get("tensorboard_output_config")) is not None:
        path = local_path(config["s3_output_path"], base=folder)
        settings["tensorboard_output_config"] = config if path is None else {**config, "s3_output_path": str(path)}
    if settings.get("track"):
        from herringbone.plan.destinations import parse_destinations

        settings["track"] = [str(destination) for destination in parse_destinations(settings["track"], base=folder)]
    instance_type = settings.get("instance_type")
    if isinstance(instance_type, str) and instance_type.startswith(_SSH):
        settings["instance_type"] = f"{_SSH}{folder / instance_type.removeprefix(_SSH)}"
    return settings


def with_code(settings: Mapping[str, Any], code: tuple[Path, str]) -> dict[str, Any]:
    """Return settings that run a copy of the code: its folder, and the script in it. Dependencies are in the copy."""
    folder, script = code
    left = {name: value for name, value in settings.items() if name not in ("dependencies", "git_config")}
    return {**left, "source_dir": str(folder), "entry_point": script}


def inputs_of(plan: JobPlan) -> dict[str, TrainingInput | FileSystemInput]:
    """Return the channels of a job as the argument `inputs` of `fit`, without the model's, which is an option."""
    model = plan.options.model_channel_name if plan.options.model_uri is not None else None
    inputs: dict[str, TrainingInput | FileSystemInput] = {}
    for channel in plan.channels:
        if channel.name == model:
            continue
        if channel.file_system is not None:
            inputs[channel.name] = channel.file_system
        elif channel.path is not None:
            # The groups were filled in by the plan, which does so again.
            inputs[channel.name] = msgspec.structs.replace(channel.input, s3_data=channel.path)
        else:
            inputs[channel.name] = channel.input
    return inputs


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with changes: hyperparameters and variables are added, all else is replaced.

    >>> merged({"hyperparameters": {"lr": 0.1, "epochs": 3}}, {"hyperparameters": {"lr": 0.01}})
    {'hyperparameters': {'lr': 0.01, 'epochs': 3}}
    """
    result = {**settings, **changes}
    for name in _MERGED:
        if name in settings and isinstance(changes.get(name, {}), Mapping):
            result[name] = {**settings[name], **changes.get(name, {})}
    return result


def earlier_settings(
    plan: JobPlan,
    settings: dict[str, Any],
    changes: Mapping[str, Any],
    ended: datetime | None,
    *,
    resume: bool,
    code: bool,
) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the settings of a job with changes, and the checkpoints to copy before it starts.

    `ended` is None while the job runs. `resume` begins from its checkpoints, `code` runs the copy of its code. Raises
    `InputError`.
    """
    if code:
        settings = with_code(settings, job_code(find_home(), plan))
    copied: dict[str, Path] = {}
    if resume:
        if changes.get("checkpoint_s3_uri") is not None:
            raise OptionError("checkpoint_s3_uri: resume takes the folder of the earlier job; leave this out")
        settings, copied = resumed(find_home(), plan, settings, over=ended is not None)
    settings = merged(settings, changes)
    refuse_masked(plan.job_name, settings)
    return settings, copied


def refuse_masked(job_name: str, settings: Mapping[str, Any]) -> None:
    """Raise `InputError` for settings whose stored values are masked: nobody but the user has them."""
    names = sorted(_masked_names(settings))
    if names:
        variables = [name.removeprefix("environment.") for name in names if name.startswith("environment.")]
        flags = "".join(f" --env {name}" for name in variables)
        hint = f" (on the command line:{flags}, which takes the value from your environment)" if flags else ""
        raise InputError(
            f"job {job_name}: {', '.join(names)}: stored masked, because it looks like a secret; give it again{hint}"
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
