"""The names of SDK v2 that host, process or run pipelines: they can be imported, and refuse to be used, by name.

    from sagemaker.serializers import CSVSerializer     # a placeholder
    CSVSerializer()                                     # UnsupportedError: sagemaker.serializers.CSVSerializer: ...

So a notebook trains, and ends at the line that asks for what is not here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from herringbone import UnsupportedError

# Modules of SDK v2 that are not here. What else comes after `sagemaker.`, as names of its version 3 do, has no module.
MODULES = frozenset([
    "accept_types", "algorithm", "amazon", "amtviz", "apiutils", "async_inference", "automl", "aws_batch",
    "base_deserializers", "base_predictor", "base_serializers", "batch_inference", "chainer", "clarify", "cli",
    "collection", "compute_resource_requirements", "config", "container_base_model", "content_types",
    "dataset_definition", "deprecations", "deserializers", "djl_inference", "drift_check_baselines", "enums",
    "environment_variables", "experiments", "explainer", "feature_store", "fw_utils", "git_utils",
    "hyperparameters", "inference_recommender", "instance_types", "instance_types_gpu_info", "interactive_apps",
    "iterators", "jumpstart", "lambda_helper", "lineage", "logs", "metadata_properties", "metric_definitions",
    "mlflow", "model", "model_card", "model_life_cycle", "model_metrics", "model_monitor", "model_uris", "modules",
    "multidatamodel", "network", "partner_app", "payloads", "pipeline", "predictor", "predictor_async",
    "processing", "resource_requirements", "rl", "script_uris", "serializer_utils", "serializers", "serve",
    "serverless", "session_settings", "spark", "sparkml", "stabilityai", "telemetry", "training_compiler",
    "transformer", "user_agent", "utilities", "vpc_utils", "workflow", "wrangler",
])  # fmt: skip

_NOT_HERE = (
    "Herringbone trains, and neither hosts, processes nor runs pipelines. The model of a job is the file"
    " estimator.model_data (a copy of its files: estimator.latest_training_job.download_model(folder)); to host it,"
    " give that file to AWS's own SDK in an environment of its own, or to boto3"
)
_OWN_ALGORITHM = (
    "AWS's own algorithms have no code outside AWS; train a script of yours with SKLearn, XGBoost or PyTorch"
)
_SCRIPT_ANYWHERE = (
    "there is no estimator for this framework; run the script with sagemaker.estimator.Estimator(image_uri=...,"
    " entry_point=...), whose image (or, on local_process, Python) has the framework"
)
_DEBUGGER = (
    "SageMaker Debugger and Profiler watch jobs at AWS alone; leave the option out, let the script print what it"
    " watches, and read it with metric_definitions"
)
# Parts of names that take part in training, and are not here -> why, and what to do instead.
_INSTEAD = {
    "TrainingCompilerConfig": (
        "SageMaker's training compiler is in AWS's images alone; leave compiler_config out, and call torch.compile (or"
        " tf.function with jit_compile=True) in the script"
    ),
    "chainer": _SCRIPT_ANYWHERE,
    "rl": _SCRIPT_ANYWHERE,
    "algorithm": _OWN_ALGORITHM,
    "amazon": _OWN_ALGORITHM,
    **dict.fromkeys(("KMeans", "PCA", "LDA", "NTM", "KNN", "LinearLearner", "RandomCutForest"), _OWN_ALGORITHM),
    **dict.fromkeys(("FactorizationMachines", "Object2Vec", "IPInsights", "AlgorithmEstimator"), _OWN_ALGORITHM),
    "debugger": _DEBUGGER,
    **dict.fromkeys(
        ("latest_job_debugger_artifacts_path", "latest_job_profiler_artifacts_path", "update_profiler"), _DEBUGGER
    ),
    **dict.fromkeys(("disable_profiling", "enable_default_profiling", "rule_job_summary"), _DEBUGGER),
}


def refusal(path: str) -> UnsupportedError:
    """Return the error of a name that is not here, with what to do instead.

    >>> str(refusal("sagemaker.model.Model"))[:60]
    'sagemaker.model.Model: Herringbone trains, and neither hosts'
    >>> str(refusal("sagemaker.chainer.Chainer"))[:65]
    'sagemaker.chainer.Chainer: there is no estimator for this framewo'
    """
    why = next((_INSTEAD[part] for part in path.split(".") if part in _INSTEAD), _NOT_HERE)
    return UnsupportedError(f"{path}: {why}. docs/start/move-in.md lists the names that are here")


def refuse_methods(kind: type, names: Sequence[str]) -> None:
    """Give a class methods that refuse to be called."""

    def refusing(name: str) -> Callable[..., None]:
        def refuse(self: Any, *_: Any, **__: Any) -> None:
            raise refusal(f"{type(self).__name__}.{name}")

        refuse.__name__ = name
        refuse.__doc__ = "Is not here, and says what to do instead."
        return refuse

    for name in names:
        setattr(kind, name, refusing(name))


class Placeholder(type):
    """The class of names that are not here: they can be named, annotated and derived from, and nothing else."""

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise refusal(cls._path)  # type: ignore[attr-defined]

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return placeholder(f"{cls._path}.{name}")  # type: ignore[attr-defined]


def placeholder(path: str) -> type:
    """Return the placeholder of a name of SDK v2.

    >>> issubclass(type("Mine", (placeholder("sagemaker.model.Model"),), {}), placeholder("sagemaker.predictor.P"))
    False
    """
    module, _, name = path.rpartition(".")
    return Placeholder(name, (), {"_path": path, "__module__": module})


def absent(module: str, name: str) -> Any:
    """Return what a module here has for a name of SDK v2 that Herringbone has not; for `__getattr__` of the module."""
    if name.startswith("_"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    found = placeholder(f"{module}.{name}")
    setattr(sys.modules[module], name, found)
    return found


class _Module(ModuleType):
    """A module of SDK v2 that is not here; each of its names is a placeholder."""

    def __getattr__(self, name: str) -> Any:
        return absent(self.__name__, name)


class _Absent(MetaPathFinder, Loader):
    """Finds modules of SDK v2 that are not here. The last finder: it only hears of modules that nobody has."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        parts = name.split(".")
        if parts[0] != "sagemaker" or len(parts) < 2 or parts[-1].startswith("_"):
            return None
        # Python has imported the module around it before.
        if parts[1] in MODULES or len(parts) > 2:
            return ModuleSpec(name, self, is_package=True)
        raise ModuleNotFoundError(
            f"{name}: no module of SDK v2, whose names Herringbone has; docs/start/move-in.md lists them", name=name
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: its names are made when they are asked for."""


def serve_imports() -> None:
    """Have modules of SDK v2 that are not here be found as placeholders."""
    if not any(isinstance(finder, _Absent) for finder in sys.meta_path):
        sys.meta_path.append(_Absent())
