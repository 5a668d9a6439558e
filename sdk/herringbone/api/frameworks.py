"""`Framework`, and the estimators `PyTorch`, `TensorFlow` and `MXNet`, with SageMaker's order of arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from herringbone.api.estimator import Estimator

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from herringbone.plan.options.declared import FrameworkOptions, ScriptOptions, TensorFlowOptions


class Framework(Estimator):
    """Train a script in an image of your own, and the base of all classes that run scripts of one framework.

    >>> class Lightning(Framework): pass
    >>> Lightning("train.py", image_uri="lightning:1", instance_type="local").fit()     # doctest: +SKIP

    See `Estimator`, which takes the same arguments in another order.

    Args:
        entry_point: The script to run: a path inside `source_dir`, or a path of its own without `source_dir`.
        source_dir: The folder of the code, or a tar.gz of it. Its requirements.txt is installed at the start.
        hyperparameters: Settings of the script, which reads each as `--name value`.
    """

    def __init__(
        self,
        entry_point: str | os.PathLike[str] | None = None,
        source_dir: str | os.PathLike[str] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        **options: Unpack[FrameworkOptions],
    ) -> None:
        super().__init__(entry_point, source_dir=source_dir, hyperparameters=hyperparameters, **options)


class _ScriptFirst(Framework):
    """The signature that SageMaker's `PyTorch` and `MXNet` share."""

    def __init__(
        self,
        entry_point: str | os.PathLike[str] | None = None,
        framework_version: str | None = None,
        py_version: str | None = None,
        source_dir: str | os.PathLike[str] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        image_uri: str | None = None,
        distribution: Mapping[str, Any] | str | None = None,
        **options: Unpack[ScriptOptions],
    ) -> None:
        super().__init__(
            entry_point,
            source_dir,
            hyperparameters,
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

    See `Estimator`. `framework_version` and `py_version` select an image where the backend runs images.

    Args:
        entry_point: The script to run: a path inside `source_dir`, or a path of its own without `source_dir`.
        framework_version: The framework's version in the image.
        py_version: Accepted because AWS's SDK has it: each image has one version of Python.
        source_dir: The folder of the code, or a tar.gz of it. Its requirements.txt is installed at the start.
        hyperparameters: Settings of the script, which reads each as `--name value`.
        image_uri: The image of the job's containers.
        distribution: The strategy that starts the ranks: a dict, a name such as "torch_distributed", or "auto".
    """

    _kind: ClassVar[str] = "PyTorch"


class MXNet(_ScriptFirst):
    """Train an MXNet script, under `mpi` or with MXNet's own parameter servers.

    >>> MXNet("train.py", instance_type="local_process", instance_count=2,
    ...       distribution={"parameter_server": {"enabled": True}}).fit()              # doctest: +SKIP

    See `Estimator`, and docs/do/mxnet.md for the environment of a script.

    Args:
        entry_point: The script to run: a path inside `source_dir`, or a path of its own without `source_dir`.
        framework_version: The framework's version in the image.
        py_version: Accepted because AWS's SDK has it: each image has one version of Python.
        source_dir: The folder of the code, or a tar.gz of it. Its requirements.txt is installed at the start.
        hyperparameters: Settings of the script, which reads each as `--name value`.
        image_uri: The image of the job's containers.
        distribution: The strategy that starts the ranks: a dict, a name such as "torch_distributed", or "auto".
    """

    _kind: ClassVar[str] = "MXNet"


class TensorFlow(Framework):
    """Train a TensorFlow script.

    >>> TensorFlow(entry_point="train.py", instance_type="local_process", instance_count=1).fit()   # doctest: +SKIP

    `model_dir` becomes a hyperparameter of that name; False leaves it out. The default is the folder that is packed
    under `mpi`, and otherwise a folder that all hosts share. See `Estimator`.

    Args:
        py_version: Accepted because AWS's SDK has it: each image has one version of Python.
        framework_version: The framework's version in the image.
        model_dir: The script's hyperparameter `model_dir`: a path or an address. False leaves the hyperparameter out.
        image_uri: The image of the job's containers.
        distribution: The strategy that starts the ranks: a dict, a name such as "torch_distributed", or "auto".
    """

    _kind: ClassVar[str] = "TensorFlow"
    model_dir: str | bool | None

    def __init__(
        self,
        py_version: str | None = None,
        framework_version: str | None = None,
        model_dir: str | Literal[False] | None = None,
        image_uri: str | None = None,
        distribution: Mapping[str, Any] | str | None = None,
        **options: Unpack[TensorFlowOptions],
    ) -> None:
        self._begin(
            {
                "py_version": py_version,
                "framework_version": framework_version,
                "model_dir": model_dir,
                "image_uri": image_uri,
                "distribution": distribution,
                **options,
            }
        )
