"""The estimators `HuggingFace`, `SKLearn` and `XGBoost`, with the names and the order of arguments of AWS's SDK."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from herringbone.api.frameworks import Framework
from herringbone.plan.plan import JobPlan
from herringbone_contract.errors import OptionError
from herringbone_contract.strategies import Framework as FrameworkName

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from herringbone.plan.options.declared import HuggingFaceOptions, LibraryOptions


class HuggingFace(Framework):
    """Train a script that uses Hugging Face's transformers, on PyTorch or TensorFlow.

    >>> HuggingFace(entry_point="train.py", instance_type="local_process", instance_count=1,
    ...             hyperparameters={"model_name": "bert-base-uncased"}).fit()          # doctest: +SKIP

    See `Estimator`, and docs/do/hugging-face.md. Where `image_uri` names no image, `transformers_version` selects one
    of Herringbone's. Raises `OptionError` for the versions of two frameworks.

    Args:
        py_version: Accepted because AWS's SDK has it: each image has one version of Python.
        entry_point: The script to run: a path inside `source_dir`, or a path of its own without `source_dir`.
        transformers_version: The version of transformers in the image.
        tensorflow_version: Accepted because AWS's SDK has it; the script then counts as TensorFlow's.
        pytorch_version: Accepted because AWS's SDK has it: each image has one version of PyTorch.
        source_dir: The folder of the code, or a tar.gz of it. Its requirements.txt is installed at the start.
        hyperparameters: Settings of the script, which reads each as `--name value`.
    """

    _framework: ClassVar[FrameworkName | None] = "huggingface"

    def __init__(
        self,
        py_version: str | None = None,
        entry_point: str | os.PathLike[str] | None = None,
        transformers_version: str | None = None,
        tensorflow_version: str | None = None,
        pytorch_version: str | None = None,
        source_dir: str | os.PathLike[str] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        **options: Unpack[HuggingFaceOptions],
    ) -> None:
        _check_first("HuggingFace", py_version)
        if dict(options).get("framework_version") is not None:
            raise OptionError("framework_version: HuggingFace has three; give transformers_version and pytorch_version")
        versions = {
            "transformers_version": transformers_version,
            "tensorflow_version": tensorflow_version,
            "pytorch_version": pytorch_version,
        }
        for name, version in versions.items():
            if not (version is None or isinstance(version, str)):
                raise OptionError(f"{name}: expected text such as '4.36.0', got {version!r}")
        if tensorflow_version is not None and pytorch_version is not None:
            raise OptionError("tensorflow_version, pytorch_version: a job trains with one of them; leave the other out")
        self._versions = {name: version for name, version in versions.items() if version is not None}
        super().__init__(
            entry_point,
            source_dir,
            hyperparameters,
            py_version=py_version,
            **options,
        )

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), **self._versions}


class _OneProcessPerHost(Framework):
    """A library whose scripts start no ranks, so that `distribution` means nothing to them."""

    def __init__(
        self,
        entry_point: str | os.PathLike[str] | None = None,
        source_dir: str | os.PathLike[str] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        region = options.pop("image_uri_region", None)
        if region is not None:
            raise OptionError(f"image_uri_region: {region!r}: the image is named by image_uri; leave this out")
        if options.get("distribution") is not None:
            raise OptionError(
                f"distribution: {type(self).__name__}'s scripts run once on each host, and no strategy starts ranks of"
                " them; leave it out, or use Estimator"
            )
        super().__init__(entry_point, source_dir, hyperparameters, **options)

    @classmethod
    def _arguments_of(cls, plan: JobPlan) -> dict[str, Any]:
        return {name: value for name, value in plan.arguments.items() if name != "distribution" or value}


class SKLearn(_OneProcessPerHost):
    """Train a scikit-learn script, on one host.

    >>> SKLearn("train.py", instance_type="local_process").fit({"training": "data"})    # doctest: +SKIP

    See `Estimator`. Raises `OptionError` for several hosts and for a `distribution`: scikit-learn spreads over none.

    Args:
        entry_point: The script to run: a path inside `source_dir`, or a path of its own without `source_dir`.
        framework_version: The version of scikit-learn in the image.
        py_version: Accepted because AWS's SDK has it: each image has one version of Python.
        source_dir: The folder of the code, or a tar.gz of it. Its requirements.txt is installed at the start.
        hyperparameters: Settings of the script, which reads each as `--name value`.
        image_uri: The image of the job's containers.
        image_uri_region: Not served; `image_uri` names the image with its region.
    """

    def __init__(
        self,
        entry_point: str | os.PathLike[str] | None = None,
        framework_version: str | None = None,
        py_version: str | None = "py3",
        source_dir: str | os.PathLike[str] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        image_uri: str | None = None,
        image_uri_region: str | None = None,
        **options: Unpack[LibraryOptions],
    ) -> None:
        super().__init__(
            entry_point,
            source_dir,
            hyperparameters,
            image_uri=image_uri,
            image_uri_region=image_uri_region,
            framework_version=framework_version,
            py_version=_given(py_version),
            **options,
        )
        count = sum(group.instance_count for group in self._groups)
        if count > 1:
            raise OptionError(
                f"instance_count: {count}: scikit-learn does not train on several hosts; set instance_count=1"
            )


class XGBoost(_OneProcessPerHost):
    """Train an XGBoost script. On several hosts the script itself connects them, by XGBoost's own tracker.

    >>> XGBoost("train.py", "3.0", instance_type="local_process").fit({"train": "data"})    # doctest: +SKIP

    See `Estimator`. `SM_HOSTS` and `SM_CURRENT_HOST` name the hosts. Raises `OptionError` for a `distribution`.

    Args:
        entry_point: The script to run: a path inside `source_dir`, or a path of its own without `source_dir`.
        framework_version: The version of XGBoost in the image.
        source_dir: The folder of the code, or a tar.gz of it. Its requirements.txt is installed at the start.
        hyperparameters: Settings of the script, which reads each as `--name value`.
        py_version: Accepted because AWS's SDK has it: each image has one version of Python.
        image_uri: The image of the job's containers.
        image_uri_region: Not served; `image_uri` names the image with its region.
    """

    def __init__(
        self,
        entry_point: str | os.PathLike[str] | None = None,
        framework_version: str | None = None,
        source_dir: str | os.PathLike[str] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        py_version: str | None = "py3",
        image_uri: str | None = None,
        image_uri_region: str | None = None,
        **options: Unpack[LibraryOptions],
    ) -> None:
        super().__init__(
            entry_point,
            source_dir,
            hyperparameters,
            image_uri=image_uri,
            image_uri_region=image_uri_region,
            framework_version=framework_version,
            py_version=_given(py_version),
            **options,
        )


def _check_first(estimator: str, py_version: object) -> None:
    if isinstance(py_version, str) and py_version.endswith((".py", ".sh")):
        raise OptionError(
            f"py_version: {py_version!r} is a script, and {estimator}'s first argument is py_version, as in"
            f" SageMaker's SDK; write entry_point={py_version!r}"
        )


def _given(py_version: str | None) -> str | None:
    # The default of AWS's SDK: nobody asked for a version, so none is named as unused.
    return None if py_version == "py3" else py_version
