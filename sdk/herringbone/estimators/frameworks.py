"""`PyTorch`, `TensorFlow` and `MXNet`: estimators under SageMaker's names, with the arguments in SageMaker's order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from herringbone.estimators.estimator import Estimator
from herringbone.planning.plan import MODEL_DIR, SHARED_MODEL_DIR, JobPlan
from herringbone_contract.constants import Key
from herringbone_contract.distribution import Framework, Launcher
from herringbone_contract.errors import OptionError


class _ScriptFirst(Estimator):
    """The order of arguments that SageMaker's `PyTorch` and `MXNet` share."""

    def __init__(
        self,
        entry_point: str | os.PathLike[str] | None = None,
        framework_version: str | None = None,
        py_version: str | None = None,
        source_dir: str | os.PathLike[str] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        image_uri: str | None = None,
        distribution: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            entry_point,
            source_dir=source_dir,
            hyperparameters=hyperparameters,
            image_uri=image_uri,
            distribution=distribution,
            framework_version=framework_version,
            py_version=py_version,
            **options,
        )


class PyTorch(_ScriptFirst):
    """Train a PyTorch script.

    >>> PyTorch("train.py", instance_type="local_process", instance_count=1, hyperparameters={"epochs": 3}).fit()
    ... # doctest: +SKIP

    See `Estimator`. `framework_version` and `py_version` choose an image where the backend runs images.
    """

    _framework: ClassVar[Framework | None] = "pytorch"


class MXNet(_ScriptFirst):
    """Train an MXNet script, under `mpi` or with MXNet's own parameter servers.

    >>> MXNet("train.py", instance_type="local_process", instance_count=2,
    ...       distribution={"parameter_server": {"enabled": True}}).fit()              # doctest: +SKIP

    See `Estimator`, and docs/mxnet.md for what a script finds.
    """

    _framework: ClassVar[Framework | None] = "mxnet"

    def _added_hyperparameters(self) -> dict[str, Any]:
        if self.distribution.launcher is Launcher.PARAMETER_SERVER:
            return {Key.PARAMETER_SERVER_FRAMEWORK: "mxnet"}
        return {}


class TensorFlow(Estimator):
    """Train a TensorFlow script.

    >>> TensorFlow(entry_point="train.py", instance_type="local_process", instance_count=1).fit()   # doctest: +SKIP

    `model_dir` becomes a hyperparameter of that name: a path as given; False leaves it out; not given, it is the
    folder that is packed under `mpi`, and otherwise one that all hosts share. See `Estimator`.
    """

    _framework: ClassVar[Framework | None] = "tensorflow"

    def __init__(
        self,
        py_version: str | None = None,
        framework_version: str | None = None,
        model_dir: str | Literal[False] | None = None,
        image_uri: str | None = None,
        distribution: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if not (model_dir is None or model_dir is False or isinstance(model_dir, str)):
            raise OptionError(f"model_dir: expected a path, an address or False, got {model_dir!r}")
        self.model_dir = model_dir
        super().__init__(
            image_uri=image_uri,
            distribution=distribution,
            framework_version=framework_version,
            py_version=py_version,
            **options,
        )

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "model_dir": self.model_dir}

    @classmethod
    def _arguments_of(cls, plan: JobPlan) -> dict[str, Any]:
        if plan.estimator == cls.__name__:
            return plan.arguments
        # Rebuilt from a description that does not say whose estimator it was.
        hyperparameters = dict(plan.arguments.get("hyperparameters", {}))
        model_dir = hyperparameters.pop("model_dir", False)
        return {**plan.arguments, "hyperparameters": hyperparameters, "model_dir": model_dir}

    def _added_hyperparameters(self) -> dict[str, Any]:
        if self.model_dir is False:
            return {}
        if self.model_dir is not None:
            return {"model_dir": self.model_dir}
        return {"model_dir": MODEL_DIR if self.distribution.launcher is Launcher.MPI else SHARED_MODEL_DIR}
