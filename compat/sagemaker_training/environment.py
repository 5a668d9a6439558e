"""`sagemaker_training.environment`: the job as a script sees it, read from the files of the container contract."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from herringbone_contract.constants import BASE_VARIABLE
from herringbone_contract.resources import num_gpus as _count_gpus
from herringbone_contract.resources import parse_resource_config
from herringbone_entry.host import base_paths, read_host
from herringbone_entry.ranks.environment import contract_environment
from sagemaker_training import mapping, params

BASE_PATH_ENV = BASE_VARIABLE

# As in the toolkit, the folders of the process that imports this module.
_paths = base_paths(os.environ)
base_dir = str(_paths.base)
code_dir = str(_paths.code)
model_dir = str(_paths.model)
input_dir = str(_paths.input)
_input_data_dir = str(Path(_paths.input) / "data")
input_config_dir = str(_paths.config)
output_dir = str(_paths.output)
output_data_dir = str(_paths.output_data)
output_intermediate_dir = str(_paths.intermediate)
hyperparameters_file_dir = str(_paths.hyperparameters)
input_data_config_file_dir = str(_paths.input_data_config)
resource_config_file_dir = str(_paths.resource_config)


def num_cpus() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def num_gpus() -> int:
    """Return the number of GPUs that this process sees."""
    return _count_gpus(os.environ)


def read_hyperparameters() -> dict[str, Any]:
    """Return all hyperparameters, decoded, with those that steer the container."""
    host = read_host(os.environ)
    return {**host.hyperparameters, **host.steering}


def read_resource_config() -> dict[str, Any]:
    """Return the content of resourceconfig.json."""
    return dict(read_host(os.environ).resource_config)


def read_input_data_config() -> dict[str, Any]:
    """Return the content of inputdataconfig.json: the channels."""
    return dict(read_host(os.environ).input_data_config)


def channel_path(channel: str) -> str:
    """Return the folder of a channel."""
    return str(_paths.channel(channel))


def write_env_vars(env_vars: Mapping[str, str] | None = None) -> None:
    """Set variables of this process and of those that it starts, which then also find the modules that it finds."""
    os.environ.update(env_vars or {})
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)


class Environment(Mapping[str, Any]):
    """The job: `env.model_dir`, `env["model_dir"]`, `dict(env)`; its names are the fields of SM_TRAINING_ENV.

    Contents that are given replace those of the files. Raises `ContractError` outside of a job, with the name of the
    file that is missing or wrong.
    """

    def __init__(
        self,
        resource_config: Mapping[str, Any] | None = None,
        input_data_config: Mapping[str, Any] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        variables = os.environ if environ is None else environ
        host = read_host(variables)
        if resource_config is not None:
            resources = parse_resource_config(json.dumps(resource_config))
            host = host._replace(resources=resources, resource_config=resource_config)
        if input_data_config is not None:
            host = host._replace(input_data_config=input_data_config)
        if hyperparameters is not None:
            host = host._replace(raw_hyperparameters=_raw(hyperparameters))
        self._variables = contract_environment(host, num_cpus=num_cpus(), num_gpus=num_gpus())
        self._fields: dict[str, Any] = json.loads(self._variables["SM_TRAINING_ENV"])
        self._fields["framework_module"] = variables.get(params.FRAMEWORK_TRAINING_MODULE_ENV, "")
        self._fields["distribution_hosts"] = self._distribution_hosts()
        self._fields["is_modelparallel_enabled"] = self._variables.get("SM_HP_MP_PARAMETERS", "{}") != "{}"
        self._s3_output = str(
            host.steering.get(params.S3_OUTPUT_LOCATION_PARAM) or variables.get(params.S3_OUTPUT_LOCATION_ENV) or ""
        )

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` ask for attributes of an object that has none yet.
        if name.startswith("_") or name not in self._fields:
            raise AttributeError(
                f"Environment has no {name!r}; it has {', '.join(sorted(self.__dict__.get('_fields', {})))}"
            )
        return self._fields[name]

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def to_cmd_args(self) -> list[str]:
        """Return the script's arguments, made from the hyperparameters."""
        return mapping.to_cmd_args(self._fields["hyperparameters"])

    def to_env_vars(self) -> dict[str, str]:
        """Return the variables SM_* of a rank."""
        return dict(self._variables)

    def _distribution_hosts(self) -> list[str]:
        """Return the hosts of the groups that the distribution names; all hosts where there is one group."""
        if not self._fields["is_hetero"]:
            return list(self._fields["hosts"])
        members = self._fields["instance_groups_dict"]
        return [host for group in self._fields["distribution_instance_groups"] for host in members[group]["hosts"]]

    def sagemaker_s3_output(self) -> str:
        """Return the address to which intermediate output goes, or an empty text."""
        return self._s3_output


# The name of `sagemaker_containers`.
TrainingEnv = Environment


def _raw(hyperparameters: Mapping[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in hyperparameters.items()}
