"""`sagemaker.inputs`."""

from __future__ import annotations

from functools import partial
from typing import Any

import herringbone
from herringbone import FileSystemInput, ShuffleConfig
from sagemaker import _absent

__all__ = ["TrainingInput", "FileSystemInput", "ShuffleConfig"]


class TrainingInput(herringbone.TrainingInput, frozen=True):
    """See `herringbone.TrainingInput`."""

    hub_access_config: Any = None
    model_access_config: Any = None

    def __post_init__(self) -> None:
        for name in ("hub_access_config", "model_access_config"):
            if getattr(self, name) is not None:
                raise _absent.refusal(f"TrainingInput.{name}")


# SDK v1's name.
s3_input = TrainingInput

_absent.refuse_methods(TrainingInput, ("add_hub_access_config", "add_model_access_config"))
__getattr__ = partial(_absent.absent, __name__)
