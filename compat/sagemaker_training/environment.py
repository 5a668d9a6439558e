"""`sagemaker_training.environment`: the job as a script sees it, read from the files of the container contract."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from herringbone_contract.constants import BASE_VARIABLE
from herringbone_contract.resources import num_gpus as _count_gpus
from herringbone_entry.host import base_paths, read_host
from herringbone_entry.ranks.environment import contract_environment
from sagemaker_training import mapping

BASE_PATH_ENV = BASE_VARIABLE

# As in the toolkit, the folders of the process that imports this module.
_paths = base_paths(os.environ)
base_dir = str(_paths.base)
code_dir = str(_paths.code)
model_dir = str(_paths.model)
input_dir = str(_paths.input)
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


class Environment(Mapping[str, Any]):
    """The job: `env.model_dir`, `env["model_dir"]`, `dict(env)`; its names are the fields of SM_TRAINING_ENV.

    Raises `ContractError` outside of a job, with the name of the file that is missing or wrong.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        host = read_host(os.environ if environ is None else environ)
        self._variables = contract_environment(host, num_cpus=num_cpus(), num_gpus=num_gpus())
        self._fields: dict[str, Any] = json.loads(self._variables["SM_TRAINING_ENV"])

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
