"""The names of AWS's SageMaker SDK v2, provided by Herringbone as far as they train.

    from sagemaker.pytorch import PyTorch          # is herringbone.PyTorch
    import sagemaker; sagemaker.get_execution_role()

What hosts, processes or runs pipelines can be imported too, and refuses to be used; see `sagemaker._absent`.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from sagemaker import _absent, _account, _alone

_alone.check()
_absent.serve_imports()
_account.begin(os.environ)

# Like the SDK that it stands for, so that scripts which compare versions choose their branch for v2.
__version__ = "2.257.7+herringbone"

# Names that the SDK's top level has -> the module that has them here.
_NAMES = {
    "Session": "sagemaker.session",
    "get_execution_role": "sagemaker.session",
    "s3_input": "sagemaker.session",
    "LocalSession": "sagemaker.local",
    "TrainingInput": "sagemaker.inputs",
    "TrainingJobAnalytics": "sagemaker.analytics",
    "HyperparameterTuningJobAnalytics": "sagemaker.analytics",
}
# Modules that the SDK imports itself: `import sagemaker` is enough for `sagemaker.pytorch.PyTorch`.
_MODULES = frozenset(
    (
        "analytics", "debugger", "estimator", "exceptions", "huggingface", "image_uris", "inputs", "instance_group",
        "job", "local", "mxnet", "parameter", "pytorch", "remote_function", "s3", "s3_utils", "session", "sklearn",
        "tensorflow", "tuner", "utils", "xgboost",
    )
)  # fmt: skip
# Functions of the SDK's top level that are not here.
_FUNCTIONS = frozenset(
    (
        "container_def", "get_model_package_args", "image_uri_config", "pipeline_container_def", "production_variant",
        "warn_v2_deprecation",
    )
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES or name in _absent.MODULES:
        return importlib.import_module(f"sagemaker.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    # Classes; a name of version 3 is a module, which is not here.
    if name[:1].isupper() or name in _FUNCTIONS:
        return _absent.absent("sagemaker", name)
    raise AttributeError(f"module 'sagemaker' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_MODULES, *_NAMES, "__version__"])
