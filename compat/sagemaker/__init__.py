"""The names of AWS's SageMaker SDK v2, as far as they train, provided by Herringbone.

    from sagemaker.pytorch import PyTorch          # is herringbone.PyTorch
    import sagemaker; sagemaker.get_execution_role()

A name that Herringbone does not have raises ImportError, which says so.
"""

from __future__ import annotations

import importlib
from typing import Any

from sagemaker import _alone

_alone.check()
_alone.explain_missing_modules()

# Like the SDK that it stands for, so that scripts which compare versions choose their branch for v2.
__version__ = "2.257.7+herringbone"

# Names that the SDK's top level has -> the module that has them here.
_NAMES = {
    "Session": "sagemaker.session",
    "get_execution_role": "sagemaker.session",
    "LocalSession": "sagemaker.local",
    "TrainingInput": "sagemaker.inputs",
}
# Modules that the SDK imports itself: `import sagemaker` is enough for `sagemaker.pytorch.PyTorch`.
_MODULES = (
    "debugger", "estimator", "huggingface", "image_uris", "inputs", "instance_group", "local", "mxnet", "pytorch",
    "session", "sklearn", "tensorflow", "tuner", "xgboost",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"sagemaker.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    return _alone.refuse("sagemaker", name)


def __dir__() -> list[str]:
    return sorted([*_MODULES, *_NAMES, "__version__"])
