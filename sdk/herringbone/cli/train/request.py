"""Read an estimator and its inputs from a job file, from flags, or from both, for `run` and `plan`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from herringbone.api.estimator import Estimator
from herringbone.api.job import attach
from herringbone.api.libraries import ESTIMATORS
from herringbone.cli.commands import Decorated
from herringbone.cli.names import JobName
from herringbone.cli.train.script_arguments import parse_script_arguments
from herringbone.plan.inputs import DEFAULT_CHANNEL, Inputs, TrainingInput, is_channel_name, parse_inputs
from herringbone.plan.option_errors import python_words
from herringbone.plan.options.strategy_names import AUTO, named_strategy
from herringbone.plan.options.typed import text_options
from herringbone.plan.request import request_of
from herringbone.system.documents import decoded, read_document
from herringbone.system.near import alternatives
from herringbone.system.user_paths import current_folder
from herringbone_contract.errors import InputError, OptionError, near_words

EPILOG = """\
\b
The job:
  a script:   herringbone run train.py --instance-count 2 -- --epochs 3
  a job file: herringbone run job.yaml

\b
  as before    herringbone run --like NAME -- --lr 1e-3
  from its     herringbone run --resume NAME
  checkpoints

\b
job.yaml holds the estimator's keyword arguments, and two more keys, framework
and inputs:
  framework: pytorch        # one of --framework; without it, any script
  entry_point: train.py
  source_dir: src
  instance_type: local_process
  instance_count: 1
  distribution: {mpi: {enabled: true, processes_per_host: 2}}
  hyperparameters: {epochs: 3}
  inputs: {training: data}  # a path, or a mapping of channels

Paths in it are relative to its folder. Flags override the file.

Hyperparameters: arguments after -- become the job's hyperparameters, and the script gets each of them as it was typed:
--epochs 3, --epochs=3 or -n 3. Each name has one value; names of one letter have one dash. A switch such as --fast is
refused, because a hyperparameter has a value: let the script take --fast true.
"""

_FRAMEWORKS = {name.lower(): kind for name, kind in ESTIMATORS.items() if kind is not Estimator}
# The section of a job file that describes a search.
TUNING = "tuning"
_JOB_FILE_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFlags:
    """The arguments that describe a job, as they were typed; `script_arguments` are the words after `--`.

    `measures` is True where the command says that the script may be measured.
    """

    job_or_script: str | None = None
    like: str | None = None
    resume: str | None = None
    code_of_job: bool = False
    framework: str | None = None
    source_dir: str | None = None
    instance_type: str | None = None
    instance_count: int | None = None
    processes_per_host: int | None = None
    distribution: str | None = None
    inputs: Sequence[str] = ()
    variables: Sequence[str] = ()
    options: Sequence[str] = ()
    job_name: str | None = None
    script_arguments: Sequence[str] = ()
    measures: bool = False


def job_flags(command: Decorated) -> Decorated:
    """Add the arguments that describe a job: a decorator, whose command makes `JobFlags` of them."""
    add = click.option
    for decorate in reversed(
        (
            click.argument("job_or_script", metavar="job.yaml|script", type=click.Path(), required=False),
            add("--like", metavar="NAME", type=JobName(), help="the settings of an earlier job, apart from flags"),
            add("--resume", metavar="NAME", type=JobName(), help="as --like, from the checkpoints of that job"),
            add("--code-of-job", is_flag=True, help="with these two: the code that the earlier job ran, not yours now"),
            add("--framework", type=click.Choice(sorted(_FRAMEWORKS)), help="the framework (default: any script runs)"),
            add(
                "--source-dir",
                metavar="FOLDER",
                type=click.Path(),
                help="the folder of the code; the script's path is then relative to it",
            ),
            add("--instance-type", metavar="TYPE", help="the type of the hosts (default: local_process)"),
            add("--instance-count", type=int, metavar="N", help="the number of hosts (default: 1)"),
            add("--processes-per-host", type=int, metavar="N", help="run N ranks on each host under MPI"),
            add(
                "--distribution",
                metavar="JSON",
                help="the distribution dict, a file with it, a strategy's name, or auto",
            ),
            add(
                "--input",
                "inputs",
                multiple=True,
                metavar="[CHANNEL=]PATH",
                help=f"data (channel: {DEFAULT_CHANNEL})",
            ),
            add(
                "--env",
                "variables",
                multiple=True,
                metavar="NAME[=VALUE]",
                help="a variable for the script; NAME alone copies yours",
            ),
            add(
                "--option",
                "-o",
                "options",
                multiple=True,
                metavar="NAME=VALUE",
                help="any other option, as -o max_run=60",
            ),
            add("--job-name", metavar="NAME", help="the job's name (default: the script's name and the time)"),
        )
    ):
        command = decorate(command)
    return command


def is_job_file(text: str) -> bool:
    """Report whether a word names a job file, by its suffix: no name of a job has a dot."""
    return Path(text).suffix in _JOB_FILE_SUFFIXES


def read_request(request: JobFlags) -> tuple[Estimator, Inputs]:
    """Return the estimator and the inputs that the arguments describe. Raises `UsageError`."""
    estimator, inputs, section = read_request_with(request, TUNING)
    if section is not None:
        raise OptionError(
            f"{TUNING}: {request.job_or_script} describes a search: herringbone tune {request.job_or_script}; for one"
            " job, leave the section out"
        )
    return estimator, inputs


def read_request_with(request: JobFlags, section: str) -> tuple[Estimator, Inputs, Any]:
    """Return the same, and a section of the job file that is not the estimator's; None where it has none."""
    if request.like is not None or request.resume is not None:
        return *_request_like(request), None
    if request.job_or_script is None:
        raise click.UsageError(
            "Missing argument 'job.yaml|script'. Name a script or a job file, or an earlier job with --like NAME.",
            click.get_current_context(silent=True),
        )
    if request.code_of_job:
        raise OptionError("--code-of-job: goes with --like NAME or --resume NAME; add one, or leave this out")
    settings: dict[str, Any] = {}
    path = Path(request.job_or_script)
    if is_job_file(request.job_or_script):
        settings = read_mapping(path)
        # Paths in a job file are relative to its folder, paths in flags to the current one. So flags get absolute paths
        # before the current folder changes.
        flags = _flags(request, base=current_folder())
        # Change the folder rather than each path: the estimator resolves many options against the current one.
        os.chdir(path.absolute().parent)
    else:
        flags = _flags(request, base=Path())
        if "entry_point" in flags:
            raise OptionError(f"--option entry_point: the script is {request.job_or_script}; name one")
        flags["entry_point"] = request.job_or_script
    inputs = _inputs(settings.pop("inputs", None), flags.pop("inputs"))
    from_section = settings.pop(section, None)
    framework = flags.pop("framework", None) or settings.get("framework")
    settings.pop("framework", None)
    # Flags add to these two mappings of the file; every other flag replaces the file's value.
    for name in ("hyperparameters", "environment"):
        settings[name] = {**_mapping(name, settings.get(name)), **flags.pop(name)}
    processes = flags.pop("processes_per_host")
    # The file may be somebody else's.
    if settings.get("distribution") == AUTO and "distribution" not in flags and not request.measures:
        raise OptionError(
            f"distribution: auto in {path} runs its script here, to measure it, and a file alone never does that; add"
            " --distribution auto to the command if you trust the script, or name the distribution"
        )
    settings.update(flags)
    # Groups have types of their own, and the estimator refuses both together.
    settings.setdefault("instance_type", None if settings.get("instance_groups") else "local_process")
    if processes is not None:
        settings["distribution"] = _with_processes(settings.get("distribution"), processes)
    if "self" in settings:
        raise OptionError("self: no such option")
    return _estimator_class(framework)(**settings), inputs, from_section


def _request_like(request: JobFlags) -> tuple[Estimator, Inputs]:
    """Return an estimator with the settings of an earlier job, which flags and words after `--` change."""
    flag = "--like" if request.resume is None else "--resume"
    for given, name in ((request.like and request.resume, "--like"), (request.job_or_script, "job.yaml|script")):
        if given:
            raise OptionError(
                f"{name}: {given} next to {flag}, which takes the script and settings of its job; drop it"
            )
    if request.framework is not None:
        raise OptionError(f"--framework: {flag} takes the framework of its job; leave this out")
    name = request.resume or str(request.like)
    flags = _flags(request, base=current_folder())
    inputs, processes = flags.pop("inputs"), flags.pop("processes_per_host")
    plan = attach(name).plan
    if processes is not None:
        flags["distribution"] = _with_processes(flags.get("distribution") or plan.arguments.distribution, processes)
    estimator = ESTIMATORS[request_of(plan).estimator].like(
        name, resume=request.resume is not None, code_of_job=request.code_of_job, **flags
    )
    channels = {channel.name: channel for channel in estimator._request.channels}
    channels |= {channel.name: channel for channel in parse_inputs(inputs, base=current_folder())}
    estimator._request = msgspec.structs.replace(
        estimator._request, channels=tuple(channels[name] for name in sorted(channels))
    )
    return estimator, None


def _with_processes(distribution: Any, processes: int) -> dict[str, Any]:
    if distribution == AUTO:
        raise OptionError("--processes-per-host: distribution auto chooses the ranks of a host; leave this out")
    # Copies, because a job file's mapping may be shared through a YAML anchor.
    strategies = dict(_mapping("distribution", named_strategy(distribution)))
    mpi = _mapping("distribution.mpi", strategies.get("mpi"))
    torch = strategies.get("torch_distributed")
    if isinstance(torch, Mapping) and torch.get("enabled") and not mpi.get("enabled"):
        raise OptionError(
            "--processes-per-host: torch_distributed starts one rank per GPU, or one on a host without GPUs; for "
            f"{processes} ranks without GPUs give --instance-count {processes}"
        )
    strategies["mpi"] = {**mpi, "enabled": True, "processes_per_host": processes}
    return strategies


# Flags of their own for what `--option` cannot set.
_HAS_FLAG = {
    "inputs": "use --input",
    "environment": "use --env",
    "hyperparameters": "write them after --",
    "processes_per_host": "use --processes-per-host",
}


def _flags(request: JobFlags, *, base: Path) -> dict[str, Any]:
    """Return the flags as arguments of an estimator, with paths relative to `base` made absolute."""
    flags: dict[str, Any] = {
        "inputs": {},
        "environment": {},
        "hyperparameters": parse_script_arguments(request.script_arguments),
        "processes_per_host": request.processes_per_host,
    }
    for option in request.options:
        name, equals, value = option.partition("=")
        if not equals:
            raise OptionError(f"--option {option}: write NAME=VALUE")
        name = name.replace("-", "_")
        if name in flags:
            raise OptionError(f"--option {name}: {_HAS_FLAG.get(name, 'stands twice; write it once')}")
        # Text is taken as it was typed: `framework_version=2.10` is no number. Everything else is YAML or JSON.
        flags[name] = value if name in text_options() else read_document(value, f"--option {name}")
    for channel_input in request.inputs:
        channel, equals, path = channel_input.partition("=")
        # A path may have a "=" of its own, and no channel.
        if not equals or not is_channel_name(channel):
            channel, path = DEFAULT_CHANNEL, channel_input
        if channel in flags["inputs"]:
            raise OptionError(f"--input: the channel {channel!r} stands twice; give each channel one path")
        if not path:
            raise InputError(f"--input {channel_input}: write [CHANNEL=]PATH")
        flags["inputs"][channel] = path if "://" in path else str(base / path)
    for variable in request.variables:
        name, equals, value = variable.partition("=")
        if not equals and name not in os.environ:
            raise OptionError(f"--env {name}: not set here; write {name}=VALUE")
        if name in flags["environment"]:
            raise OptionError(f"--env {name}: stands twice; write it once")
        flags["environment"][name] = value if equals else os.environ[name]
    # A flag that was not used is None, and must not replace the value of the job file.
    for name in ("framework", "instance_type", "instance_count"):
        if getattr(request, name) is not None:
            if name in flags:
                raise OptionError(f"--option {name}: there is a flag for it as well; write one of the two")
            flags[name] = getattr(request, name)
    if request.source_dir is not None:
        # An empty path would be the current folder.
        flags["source_dir"] = str(base / request.source_dir) if request.source_dir else ""
    if request.distribution is not None:
        flags["distribution"] = read_distribution(request.distribution.strip())
    return flags


def read_distribution(text: str) -> Mapping[str, Any] | str | None:
    """Return the dict that a dict's text, a file or a strategy's name means."""
    if text[:1] == "{":
        return _parse_mapping(text, "--distribution")
    if text == AUTO:
        return text
    if "/" in text or Path(text).suffix in _JOB_FILE_SUFFIXES or Path(text).exists():
        return read_mapping(Path(text))
    return named_strategy(text)


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML or JSON file holds. Raises `InputError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        hint = alternatives(path) if isinstance(error, FileNotFoundError) else ""
        raise InputError(f"{path}: {error.strerror}{hint}") from error
    return _parse_mapping(decoded(data, str(path)), str(path))


def _parse_mapping(text: str, origin: str) -> dict[str, Any]:
    content = read_document(text, origin)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InputError(f"{origin}: expected a mapping of names to values")
    return content


def _mapping(name: str, value: Any) -> dict[str, Any]:
    """Return a value of the job file that has to be a mapping; an empty one for None."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{name}: expected a mapping of names to values, got {value!r}")
    return value


def _estimator_class(framework: Any) -> type[Estimator]:
    if framework is None:
        return Estimator
    if not isinstance(framework, str) or framework not in _FRAMEWORKS:
        near = near_words(str(framework), _FRAMEWORKS)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise OptionError(f"framework: {framework!r} is none of {', '.join(sorted(_FRAMEWORKS))}{hint}")
    return _FRAMEWORKS[framework]


def _inputs(from_file: Any, from_flags: dict[str, Any]) -> Inputs:
    """Merge the channels of the file and of the flags; a mapping in the file holds a `TrainingInput`'s arguments."""
    if from_file is None:
        return from_flags or None
    channels = from_file if isinstance(from_file, dict) else {DEFAULT_CHANNEL: from_file}
    return {**{name: _channel(name, value) for name, value in channels.items()}, **from_flags}


def _channel(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    try:
        return msgspec.convert(value, TrainingInput)
    except msgspec.ValidationError as error:
        raise InputError(f"inputs: {name}: {python_words(str(error))}") from None
