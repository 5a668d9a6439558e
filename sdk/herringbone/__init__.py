"""Herringbone: SageMaker-style managed training that runs anywhere.

    from herringbone import PyTorch

    job = PyTorch("train.py", instance_type="local_process", instance_count=1).fit({"training": "file://data"})

`__all__` is the whole public interface. A name is imported from its module on first use, so that importing this package
takes a millisecond.
"""

from __future__ import annotations

# Importing `typing` would take longer than the rest of this module; type checkers know the name `TYPE_CHECKING`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.api.estimator import Estimator
    from herringbone.api.frameworks import Framework, MXNet, PyTorch, TensorFlow
    from herringbone.api.job import TrainingJob, attach
    from herringbone.api.libraries import HuggingFace, SKLearn, XGBoost
    from herringbone.api.remote_function.function import remote
    from herringbone.api.tuner import HyperparameterTuner
    from herringbone.plan.inputs import FileSystemInput, ShuffleConfig, TrainingInput
    from herringbone.plan.options.typed import InstanceGroup, TensorBoardOutputConfig
    from herringbone.prediction.options import Measure
    from herringbone.tuner.configs import (
        HyperbandStrategyConfig,
        StrategyConfig,
        TuningJobCompletionCriteriaConfig,
        WarmStartConfig,
        WarmStartTypes,
    )
    from herringbone.tuner.parameters import CategoricalParameter, ContinuousParameter, IntegerParameter
    from herringbone_contract.errors import (
        ArchiveError,
        AwsAccessError,
        AwsCredentialsError,
        AwsError,
        AwsUnavailableError,
        ContractError,
        DistributionError,
        EngineError,
        HerringboneError,
        HostError,
        HyperparameterError,
        ImageError,
        IndexBusyError,
        InputError,
        JobFailedError,
        JobNameError,
        JobNotFoundError,
        KubernetesError,
        LaunchError,
        MeasurementError,
        OptionError,
        RemoteError,
        RequestError,
        ServiceError,
        SlurmError,
        TrackerError,
        TuningFailedError,
        UnsupportedError,
        UsageError,
    )
    from herringbone_contract.events.script import log_metrics, log_progress
    from herringbone_contract.events.stops import should_stop

__all__ = [
    # Describe a job.
    "Estimator",
    "PyTorch",
    "TensorFlow",
    "MXNet",
    "HuggingFace",
    "SKLearn",
    "XGBoost",
    "Framework",
    "InstanceGroup",
    "ShuffleConfig",
    "TrainingInput",
    "FileSystemInput",
    "TensorBoardOutputConfig",
    "Measure",
    # Run a function as a job.
    "remote",
    # Follow a job.
    "TrainingJob",
    "attach",
    # Search hyperparameters.
    "HyperparameterTuner",
    "ContinuousParameter",
    "IntegerParameter",
    "CategoricalParameter",
    "WarmStartConfig",
    "WarmStartTypes",
    "StrategyConfig",
    "HyperbandStrategyConfig",
    "TuningJobCompletionCriteriaConfig",
    # Report from a script that runs in a job.
    "log_metrics",
    "log_progress",
    "should_stop",
    # Catch errors.
    "HerringboneError",
    "UsageError",
    "DistributionError",
    "HyperparameterError",
    "OptionError",
    "InputError",
    "JobNameError",
    "UnsupportedError",
    "ContractError",
    "ArchiveError",
    "JobNotFoundError",
    "JobFailedError",
    "TuningFailedError",
    "RemoteError",
    "LaunchError",
    "MeasurementError",
    "ServiceError",
    "SlurmError",
    "KubernetesError",
    "TrackerError",
    "HostError",
    "RequestError",
    "IndexBusyError",
    "EngineError",
    "ImageError",
    "AwsError",
    "AwsCredentialsError",
    "AwsAccessError",
    "AwsUnavailableError",
]

_MODULES = {
    "Estimator": "herringbone.api.estimator",
    "PyTorch": "herringbone.api.frameworks",
    "TensorFlow": "herringbone.api.frameworks",
    "MXNet": "herringbone.api.frameworks",
    "Framework": "herringbone.api.frameworks",
    "HuggingFace": "herringbone.api.libraries",
    "SKLearn": "herringbone.api.libraries",
    "XGBoost": "herringbone.api.libraries",
    "InstanceGroup": "herringbone.plan.options.typed",
    "TensorBoardOutputConfig": "herringbone.plan.options.typed",
    "ShuffleConfig": "herringbone.plan.inputs",
    "TrainingInput": "herringbone.plan.inputs",
    "FileSystemInput": "herringbone.plan.inputs",
    "Measure": "herringbone.prediction.options",
    "remote": "herringbone.api.remote_function.function",
    "TrainingJob": "herringbone.api.job",
    "attach": "herringbone.api.job",
    "HyperparameterTuner": "herringbone.api.tuner",
    "ContinuousParameter": "herringbone.tuner.parameters",
    "IntegerParameter": "herringbone.tuner.parameters",
    "CategoricalParameter": "herringbone.tuner.parameters",
    "WarmStartConfig": "herringbone.tuner.configs",
    "WarmStartTypes": "herringbone.tuner.configs",
    "StrategyConfig": "herringbone.tuner.configs",
    "HyperbandStrategyConfig": "herringbone.tuner.configs",
    "TuningJobCompletionCriteriaConfig": "herringbone.tuner.configs",
    "log_metrics": "herringbone_contract.events.script",
    "log_progress": "herringbone_contract.events.script",
    "should_stop": "herringbone_contract.events.stops",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'herringbone' has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(_MODULES.get(name, "herringbone_contract.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
