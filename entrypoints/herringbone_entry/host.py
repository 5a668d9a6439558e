"""One host, as the platform describes it in files and variables, read once into one value."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, NamedTuple

from herringbone_contract.constants import (
    BASE_VARIABLE,
    DEFAULT_BASE,
    DEFAULT_HEARTBEAT_SECONDS,
    DEFAULT_JOIN_TIMEOUT_SECONDS,
    DEFAULT_STOP_GRACE_SECONDS,
    HANG_TIMEOUT_SECONDS,
    STEPPING_HANG_TIMEOUT_SECONDS,
    HostVariable,
    Key,
)
from herringbone_contract.errors import ContractError
from herringbone_contract.hyperparameters import decode_values, split
from herringbone_contract.paths import Paths
from herringbone_contract.resources import ResourceConfig, parse_resource_config
from herringbone_entry.inherited import DESCRIPTOR_FOLDER, inherited

# TensorFlow's estimator adds this hyperparameter.
_MODEL_DIR = "model_dir"


class Host(NamedTuple):
    """One host of the job, as its own files and variables describe it.

    `raw_hyperparameters` is the file's content; `hyperparameters` are the user's own, decoded; `steering` are the
    `sagemaker_*` ones, decoded. `checkpoints` is the folder that the platform keeps. Times are in seconds.
    """

    paths: Paths
    resources: ResourceConfig
    raw_hyperparameters: Mapping[str, str] = MappingProxyType({})
    resource_config: Mapping[str, Any] = MappingProxyType({})
    input_data_config: Mapping[str, Any] = MappingProxyType({})
    environ: Mapping[str, str] = MappingProxyType({})
    control: str | None = None
    run_folder: str | None = None
    lifeline: int | None = None
    stop_grace: float = DEFAULT_STOP_GRACE_SECONDS
    join_timeout: float = DEFAULT_JOIN_TIMEOUT_SECONDS
    heartbeat: float = DEFAULT_HEARTBEAT_SECONDS
    checkpoints: PurePath = Paths().checkpoints

    @property
    def name(self) -> str:
        """This host's name."""
        return self.resources.current_host

    @property
    def is_first(self) -> bool:
        """True if the job's coordinator runs on this host."""
        return self.name == self.resources.first_host

    @property
    def on_one_machine(self) -> bool:
        """True if all hosts of the job are processes of this machine."""
        return self.control is None or self.control.startswith("unix:")

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The hyperparameters of the user's script."""
        values = decode_values(split(self.raw_hyperparameters)[0])
        address = values.get(_MODEL_DIR)
        # SageMaker gives all trials of a tuning job the same `model_dir`; without the job's name, they would
        # overwrite each other's models. Paths below /opt/ml are each trial's own.
        if Key.TUNING_METRIC in self.raw_hyperparameters and isinstance(address, str) and "://" in address:
            values[_MODEL_DIR] = f"{address.rstrip('/')}/{self.job_name}/model"
        return values

    @property
    def steering(self) -> dict[str, Any]:
        """The hyperparameters that steer the container."""
        return decode_values(split(self.raw_hyperparameters)[1])

    def hang_timeout(self, world_size: int) -> float:
        """Seconds without a sign of life of any rank after which the job counts as hanging; 0.0 for never."""
        value = self.steering.get(Key.HANG_TIMEOUT)
        if value is not None:
            return float(value) if isinstance(value, (int, float)) and value > 0 else 0.0
        if {Key.MODEL_PARALLEL_PARAMETERS, Key.DATA_PARALLEL_ENABLED} & self.raw_hyperparameters.keys():
            return STEPPING_HANG_TIMEOUT_SECONDS
        return HANG_TIMEOUT_SECONDS if world_size > 1 else 0.0

    @property
    def loss_spike_factor(self) -> float | None:
        """The multiple of its median at which a loss counts as a spike; None where nobody asks."""
        value = self.steering.get(Key.LOSS_SPIKE_FACTOR)
        return float(value) if isinstance(value, (int, float)) and value > 1 else None

    @property
    def idle_timeout(self) -> float:
        """Seconds after which a job that uses none of its devices is stopped; 0.0 for never."""
        value = self.steering.get(Key.IDLE_TIMEOUT)
        return float(value) if isinstance(value, (int, float)) and value > 0 else 0.0

    @property
    def fault_policies(self) -> dict[str, str]:
        """The user's answers to kinds of faults, as `policies.answer` takes them."""
        value = self.steering.get(Key.FAULT_POLICIES)
        return {str(kind): str(each) for kind, each in value.items()} if isinstance(value, dict) else {}

    @property
    def infra_check(self) -> bool | None:
        """True if the job's hosts are examined before its first step; None: if they are several machines."""
        value = self.steering.get(Key.INFRA_CHECK)
        # Without a lifeline a service has started the hosts, and examines them itself where it is asked to.
        return value if isinstance(value, bool) else None if self.lifeline is not None else False

    @property
    def keep_checkpoints(self) -> dict[str, Any] | None:
        """The checkpoints that the job keeps, as `keeping.Keep` has it; None for all."""
        value = self.steering.get(Key.KEEP_CHECKPOINTS)
        return value if isinstance(value, dict) else None

    @property
    def drain_notice(self) -> str | list[str] | None:
        """The notice that the platform takes a host away, as `events.drain` has it; None for none."""
        value = self.steering.get(Key.DRAIN_NOTICE)
        return value if isinstance(value, (str, list)) else None

    @property
    def job_name(self) -> str:
        """The job's name, or an empty text."""
        return str(self.environ.get(HostVariable.JOB_NAME) or self.steering.get(Key.JOB_NAME) or "")

    @property
    def base_environment(self) -> dict[str, str]:
        """The variables that every rank inherits."""
        return inherited(self.environ)


def read_host(environ: Mapping[str, str]) -> Host:
    """Read the contract's files below `SAGEMAKER_BASE_DIR` (default /opt/ml), and the backend's variables.

    Raises `ContractError` with the name of the file or variable that is missing or wrong.
    """
    paths = base_paths(environ)
    resource_text = _read(Path(paths.resource_config))
    if resource_text is None:
        # Somebody started the container by hand: assume one host, with the service's name for it.
        resource_text = json.dumps({"current_host": environ.get("CURRENT_HOST", "algo-1")})
    resources = parse_resource_config(resource_text)
    # Absent in containers of the service: there the platform itself stops the container.
    lifeline = environ.get(HostVariable.LIFELINE)
    return Host(
        paths=paths,
        resources=resources,
        raw_hyperparameters={
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in _read_object(Path(paths.hyperparameters)).items()
        },
        resource_config=json.loads(resource_text),
        input_data_config=_data_of(_read_object(Path(paths.input_data_config)), paths, environ),
        environ=dict(environ),
        control=_control(environ.get(HostVariable.CONTROL) or None, resources.first_host),
        run_folder=environ.get(HostVariable.RUN_FOLDER),
        lifeline=None if lifeline is None else int(_number(environ, HostVariable.LIFELINE, 0)),
        stop_grace=_number(environ, HostVariable.STOP_GRACE, DEFAULT_STOP_GRACE_SECONDS),
        join_timeout=_number(environ, HostVariable.JOIN_TIMEOUT, DEFAULT_JOIN_TIMEOUT_SECONDS),
        heartbeat=_number(environ, HostVariable.HEARTBEAT, DEFAULT_HEARTBEAT_SECONDS),
        # `checkpoint_local_path` of a job on SageMaker names another folder than the contract's.
        checkpoints=Path(_read_object(Path(paths.checkpoint_config)).get("LocalPath") or paths.checkpoints),
    )


def _data_of(channels: dict[str, Any], paths: Paths, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the channels without the one that brought the hosts' key, which is not for the script."""
    key = environ.get(HostVariable.KEY_FILE)
    if key is None:
        return channels
    return {name: channel for name, channel in channels.items() if Path(key).parent != Path(paths.channel(name))}


def base_paths(environ: Mapping[str, str]) -> Paths:
    """Return the contract's tree of files for this process, with absolute paths."""
    return Paths(Path(environ.get(BASE_VARIABLE) or DEFAULT_BASE).absolute())


def take_key(environ: MutableMapping[str, str]) -> bytes:
    """Read the job's secret, and remove the variable that leads to it, so that no rank can read it again.

    Raises `ContractError` when the backend gave no secret.
    """
    path = environ.pop(HostVariable.KEY_FILE, None)
    if path is None:
        raise ContractError(
            "several hosts need a secret to prove themselves to each other, and the backend gave none: neither "
            f"{HostVariable.KEY_FILE} nor {HostVariable.PRIVATE} is set"
        )
    return _secret(HostVariable.KEY_FILE, path)


def take_remote_key(environ: MutableMapping[str, str]) -> None:
    """Set `HERRINGBONE_REMOTE_KEY` to what the descriptor in `HERRINGBONE_REMOTE_KEY_FD` gives, if there is one."""
    descriptor = environ.pop(HostVariable.REMOTE_KEY_FD, None)
    if descriptor is not None:
        environ[HostVariable.REMOTE_KEY] = _secret(
            HostVariable.REMOTE_KEY_FD, f"{DESCRIPTOR_FOLDER}{descriptor}"
        ).decode()


def _secret(variable: str, path: str) -> bytes:
    try:
        if path.startswith(DESCRIPTOR_FOLDER):
            # Reading to the end and closing leaves nothing in the pipe for anyone else.
            with os.fdopen(int(path.removeprefix(DESCRIPTOR_FOLDER)), "rb") as descriptor:
                secret = descriptor.read()
        else:
            secret = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise ContractError(f"{variable}={path} cannot be read: {error}") from error
    if not secret:
        raise ContractError(f"{variable}={path} is empty: it was read before, or never written")
    return secret


def _control(control: str | None, first_host: str) -> str | None:
    """Add the first host's name to a port alone: some platforms name hosts only after the job is submitted.

    >>> _control("tcp::7590", "algo-1-x7f2")
    'tcp:algo-1-x7f2:7590'
    """
    return f"tcp:{first_host}:{control[5:]}" if control is not None and control.startswith("tcp::") else control


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    # `not >=` and not `<`, which would let NaN pass.
    if not value >= 0:
        raise ContractError(f"{name}={text!r} is not a number of at least 0")
    return value


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(f"{path} cannot be read: {error}") from error


def _read_object(path: Path) -> dict[str, Any]:
    text = _read(path)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ContractError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content
