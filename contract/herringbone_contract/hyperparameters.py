"""Carry settings to the container as SageMaker's hyperparameters, a flat table of JSON texts.

`encode` and `decode` are the two directions for a `Distribution`. The names and values are those that AWS's SDK
(sagemaker 2.257) writes, so that either side may be AWS's; docs/look-up/distribution.md lists our additions.

The types of a distribution are imported where they are used: a host with a plain script needs none, and its user waits
for the first line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from herringbone_contract.constants import (
    MAX_HYPERPARAMETER_CHARS,
    MAX_HYPERPARAMETER_KEY_CHARS,
    MAX_HYPERPARAMETERS,
    STEERING_PREFIX,
    Key,
)
from herringbone_contract.errors import HyperparameterError

if TYPE_CHECKING:
    from herringbone_contract.distribution import Distribution, SMDistributed

# Of all texts that begin with a dash, argparse takes only these for values, whatever options the script has.
_PLAIN_NUMBER = re.compile(r"-(\d+|\d*\.\d+)?")


def encode_values(values: Mapping[str, object]) -> dict[str, str]:
    """Return each value as a JSON text, in the form that AWS's SDK sends.

    >>> encode_values({"epochs": 3, "name": "run"})
    {'epochs': '3', 'name': '"run"'}

    Raises `HyperparameterError` for a value that JSON cannot hold, and for the limits in `check_limits`.
    """
    encoded = {}
    for key, value in values.items():
        try:
            encoded[key] = json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise HyperparameterError(
                f"hyperparameter {key!r} cannot be encoded: {error}. Give numbers, strings, booleans, None, or lists"
                f" and dicts of them; turn a {type(value).__name__} into one first."
            ) from error
    check_limits(encoded)
    return encoded


# A script gets a hyperparameter as `--name value`, so a name must be one word that begins with no dash.
_NAME = re.compile(r"[^\s=\x00-\x1f\x7f-\x9f\ud800-\udfff-][^\s=\x00-\x1f\x7f-\x9f\ud800-\udfff]*")


def is_name(name: str) -> bool:
    """Return whether a script gets a hyperparameter of this name as one argument, whose value follows it."""
    return _NAME.fullmatch(name) is not None


def with_code_at(hyperparameters: Mapping[str, str], path: str) -> dict[str, str]:
    """Return a job's hyperparameters, encoded, for a host that has the code at `path`.

    >>> with_code_at({"sagemaker_submit_directory": '"s3://mine/code.tar.gz"'}, "/code.tar.gz")
    {'sagemaker_submit_directory': '"s3://mine/code.tar.gz"', 'sagemaker_code_archive': '"/code.tar.gz"'}

    Scripts for AWS's images take the bucket from an s3:// address, so it stays.
    """
    is_address = hyperparameters.get(Key.SUBMIT_DIRECTORY, "").startswith('"s3://')
    return {**hyperparameters, Key.CODE_ARCHIVE if is_address else Key.SUBMIT_DIRECTORY: json.dumps(path)}


def check_user_values(values: Mapping[str, object]) -> None:
    """Raise `HyperparameterError` for hyperparameters that a script would not get as its user wrote them.

    >>> check_user_values({"epochs": 3, "name": ""})
    """
    for name, value in values.items():
        if not is_name(name):
            raise HyperparameterError(
                f"hyperparameter {name!r}: a name has no white space, no = and no leading dash, because the script gets"
                " it as --name; rename it"
            )
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise HyperparameterError(
                f"hyperparameter {name!r} has half of a character (a lone surrogate), which no argument can carry"
            ) from None
        except (TypeError, ValueError, RecursionError):
            # `encode_values` names these.
            continue


def check_limits(encoded: Mapping[str, str]) -> None:
    """Raise `HyperparameterError` if the service would refuse this table for its size, a name or a value."""
    if len(encoded) > MAX_HYPERPARAMETERS:
        raise HyperparameterError(
            f"{len(encoded)} hyperparameters; the service takes {MAX_HYPERPARAMETERS}, Herringbone's own included."
            " Put the rest in a file of a channel, or in one hyperparameter as a dict."
        )
    for key, text in encoded.items():
        if not isinstance(key, str) or not key:
            raise HyperparameterError(f"hyperparameter {key!r}: a name is a text of at least one character.")
        if len(key) > MAX_HYPERPARAMETER_KEY_CHARS:
            raise HyperparameterError(
                f"hyperparameter {key[:40]!r}...: its name has {len(key)} characters; the service takes"
                f" {MAX_HYPERPARAMETER_KEY_CHARS}. Shorten it."
            )
        if len(text) > MAX_HYPERPARAMETER_CHARS:
            raise HyperparameterError(
                f"hyperparameter {key!r} has {len(text)} characters as JSON; the service takes"
                f" {MAX_HYPERPARAMETER_CHARS}. Put it in a file of a channel and pass the file's name."
            )


def decode_values(raw: Mapping[str, str]) -> dict[str, Any]:
    """Return each value, parsed as JSON if it is JSON, or as the text itself: other tools send bare text.

    >>> decode_values({"epochs": "3", "name": "run"})
    {'epochs': 3, 'name': 'run'}
    """
    return {key: _decode_value(text) for key, text in raw.items()}


def _decode_value(text: str) -> Any:
    try:
        return json.loads(text)
    # Deeply nested brackets are JSON to the grammar and too deep for the parser; keep them as text.
    except (ValueError, RecursionError):
        return text


def split(raw: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split hyperparameters into those of the user's script and those that steer the container.

    `mp_parameters` goes to the script, as in AWS's containers: scripts read it from their arguments. The name of a
    tuning job's objective, which SageMaker adds to its trials, does not.

    >>> split({"epochs": "3", "sagemaker_program": '"train.py"'})
    ({'epochs': '3'}, {'sagemaker_program': '"train.py"'})
    """
    user = {key: text for key, text in raw.items() if not key.startswith(STEERING_PREFIX) and key != Key.TUNING_METRIC}
    return user, {key: text for key, text in raw.items() if key not in user}


def arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return the command line that passes hyperparameters to a script.

    >>> arguments({"epochs": 3, "b": True, "least": -1e-05, "sizes": {"x": 1, "y": 2}, "t": "-v"})
    ['-b', 'True', '--epochs', '3', '--least=-1e-05', '--sizes', 'x=1,y=2', '-t-v']
    """
    words = []
    for name in sorted(hyperparameters):
        value = hyperparameters[name]
        is_short = len(name) == 1
        option = f"-{name}" if is_short else f"--{name}"
        if isinstance(value, dict):
            text = ",".join(f"{key}={item}" for key, item in sorted(value.items()))
        else:
            text = "" if value is None else str(value)
        if text.startswith("-") and _PLAIN_NUMBER.fullmatch(text) is None:
            # As a word of its own it would pass for an option. Only argparse takes an = after one letter.
            words.append(option + "=" * (not is_short) + text)
        else:
            words += [option, text]
    return words


def bare_values(encoded: Mapping[str, str]) -> dict[str, str]:
    """Return hyperparameters for the own program of an image, whose arguments may be all of them.

    >>> bare_values({"name": '"run"', "epochs": "3", "sagemaker_job_name": '"job-1"'})
    {'name': 'run', 'epochs': '3'}
    >>> bare_values({"sagemaker_program": '"train.py"'}) == bare_values({"sagemaker_program": '"\\\\"train.py\\\\""'})
    True

    Texts have no quotes but those of names that steer a script, once, also where the caller has encoded them. Those
    that steer one in any job are left out: AWS's built-in algorithms refuse both, and so do scripts that parse their
    arguments strictly.
    """
    bare = {}
    for name, text in encoded.items():
        if name in (Key.LOG_LEVEL, Key.JOB_NAME):
            continue
        value = json.loads(text)
        quoted = name.startswith(STEERING_PREFIX) and not str(value).startswith('"')
        bare[name] = value if isinstance(value, str) and not quoted else text
    return bare


def encode(distribution: Distribution, *, instance_type: str) -> dict[str, str]:
    """Return the hyperparameters that carry a distribution.

    >>> from herringbone_contract.distribution import parse
    >>> encode(parse({"mpi": {"enabled": True, "processes_per_host": 2}}), instance_type="local_process")
    ... # doctest: +NORMALIZE_WHITESPACE
    {'sagemaker_mpi_enabled': 'true', 'sagemaker_mpi_num_of_processes_per_host': '2',
     'sagemaker_mpi_custom_mpi_options': '""'}

    Raises `HyperparameterError` when the parameters of modelparallel are over 2,500 characters.
    """
    from msgspec import UNSET

    from herringbone_contract.model_parallel.values import value_or

    values: dict[str, object] = {}
    if distribution.instance_groups is not UNSET:
        values[Key.DISTRIBUTION_INSTANCE_GROUPS] = list(distribution.instance_groups)
    if distribution.pytorchxla is not UNSET:
        values[Key.PYTORCH_XLA_ENABLED] = distribution.pytorchxla.enabled
    if distribution.parameter_server is not UNSET:
        values[Key.PARAMETER_SERVER_ENABLED] = distribution.parameter_server.enabled
    if distribution.mpi is not UNSET:
        mpi = distribution.mpi
        values[Key.MPI_ENABLED] = mpi.enabled
        if mpi.processes_per_host is not UNSET:
            values[Key.MPI_PROCESSES_PER_HOST] = mpi.processes_per_host
        values[Key.MPI_CUSTOM_OPTIONS] = value_or(mpi.custom_mpi_options, "")
    if distribution.smdistributed is not UNSET:
        values |= _encode_smdistributed(distribution.smdistributed)
        values[Key.INSTANCE_TYPE] = instance_type
    if distribution.multi_worker_mirrored_strategy is not UNSET:
        values[Key.MULTI_WORKER_MIRRORED_ENABLED] = distribution.multi_worker_mirrored_strategy.enabled
    # A strategy that is off is `UNSET`, because AWS's SDK sends nothing then.
    if distribution.pytorchddp is not UNSET:
        values[Key.PYTORCH_DDP_ENABLED] = True
        values[Key.INSTANCE_TYPE] = instance_type
        if distribution.pytorchddp.custom_mpi_options is not UNSET:
            values[Key.DATA_PARALLEL_CUSTOM_OPTIONS] = distribution.pytorchddp.custom_mpi_options
    if distribution.torch_distributed is not UNSET:
        values[Key.TORCH_DISTRIBUTED_ENABLED] = True
        values[Key.INSTANCE_TYPE] = instance_type
    return encode_values(values)


def _encode_smdistributed(smdistributed: SMDistributed) -> dict[str, object]:
    import msgspec
    from msgspec import UNSET

    from herringbone_contract.model_parallel.values import value_or

    values: dict[str, object] = {}
    if smdistributed.modelparallel is not UNSET:
        values[Key.MODEL_PARALLEL_PARAMETERS] = msgspec.to_builtins(smdistributed.modelparallel.parameters)
    # AWS's SDK sends this switch with modelparallel as well, then as false.
    data_parallel = value_or(smdistributed.dataparallel, None)
    values[Key.DATA_PARALLEL_ENABLED] = data_parallel is not None and data_parallel.enabled
    if data_parallel is not None and data_parallel.enabled:
        values[Key.DATA_PARALLEL_CUSTOM_OPTIONS] = value_or(data_parallel.custom_mpi_options, "")
        parameters = msgspec.to_builtins(data_parallel)
        ours = {name: parameters[name] for name in parameters if name not in ("enabled", "custom_mpi_options")}
        if ours:
            values[Key.DATA_PARALLEL_PARAMETERS] = ours
    return values


# The path of each hyperparameter in the `distribution` dict.
_DICT_PATHS = {
    Key.DISTRIBUTION_INSTANCE_GROUPS: ("instance_groups",),
    Key.PYTORCH_XLA_ENABLED: ("pytorchxla", "enabled"),
    Key.PARAMETER_SERVER_ENABLED: ("parameter_server", "enabled"),
    Key.MPI_ENABLED: ("mpi", "enabled"),
    Key.MPI_PROCESSES_PER_HOST: ("mpi", "processes_per_host"),
    Key.MPI_CUSTOM_OPTIONS: ("mpi", "custom_mpi_options"),
    Key.DATA_PARALLEL_ENABLED: ("smdistributed", "dataparallel", "enabled"),
    Key.MULTI_WORKER_MIRRORED_ENABLED: ("multi_worker_mirrored_strategy", "enabled"),
    Key.PYTORCH_DDP_ENABLED: ("pytorchddp", "enabled"),
    Key.TORCH_DISTRIBUTED_ENABLED: ("torch_distributed", "enabled"),
    Key.MODEL_PARALLEL_PARAMETERS: ("smdistributed", "modelparallel", "parameters"),
}


def carries_distribution(hyperparameters: Container[str]) -> bool:
    """Return True if the hyperparameters hold a distribution; the job is a plain script otherwise.

    >>> carries_distribution({"epochs": "3", "sagemaker_program": '"train.py"'})
    False
    """
    shared_keys = (Key.DATA_PARALLEL_CUSTOM_OPTIONS, Key.DATA_PARALLEL_PARAMETERS)
    return any(key in hyperparameters for key in (*_DICT_PATHS, *shared_keys))


def decode(hyperparameters: Mapping[str, str]) -> Distribution:
    """Return the distribution that `encode`, or AWS's SDK, wrote among these hyperparameters.

    Raises `DistributionError` when they contradict each other, `HyperparameterError` for a value that must be a JSON
    object and is not.
    """
    from herringbone_contract.distribution import parse

    raw: dict[str, Any] = {}
    if Key.DATA_PARALLEL_PARAMETERS in hyperparameters:
        # First, because this puts in a whole object, and the switch below goes into the same one.
        _put(raw, ("smdistributed", "dataparallel"), _decode_object(Key.DATA_PARALLEL_PARAMETERS, hyperparameters))
    for key, path in _DICT_PATHS.items():
        if key in hyperparameters:
            _put(raw, path, _decode_value(hyperparameters[key]))
    if Key.MODEL_PARALLEL_PARAMETERS in hyperparameters:
        parallel = raw["smdistributed"]["modelparallel"]
        # `parse` would read a text as a path, and hyperparameters must not choose a file of the container.
        parallel["parameters"] = _decode_object(Key.MODEL_PARALLEL_PARAMETERS, hyperparameters)
        # No hyperparameter carries this switch: the parameters are sent only when it is on.
        parallel["enabled"] = True
    if Key.DATA_PARALLEL_CUSTOM_OPTIONS in hyperparameters:
        # Both strategies share this hyperparameter; pytorchddp has a switch that tells them apart.
        owner = ("pytorchddp",) if "pytorchddp" in raw else ("smdistributed", "dataparallel")
        options = _decode_value(hyperparameters[Key.DATA_PARALLEL_CUSTOM_OPTIONS])
        _put(raw, (*owner, "custom_mpi_options"), options)
    return parse(raw)


def _decode_object(key: str, hyperparameters: Mapping[str, str]) -> dict[str, Any]:
    value = _decode_value(hyperparameters[key])
    if not isinstance(value, dict):
        raise HyperparameterError(
            f"hyperparameter {key!r} is not a JSON object: {hyperparameters[key][:80]!r}. It is written by the"
            " estimator from its distribution; leave it out of hyperparameters."
        )
    return value


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value
