"""The estimators `HuggingFace`, `SKLearn` and `XGBoost`, with the names and the order of arguments of AWS's SDK."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from herringbone.api.estimator import Estimator
from herringbone.api.frameworks import Framework, MXNet, PyTorch, TensorFlow

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

    _kind: ClassVar[str] = "HuggingFace"

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
        self._begin(
            {
                "entry_point": entry_point,
                "source_dir": source_dir,
                "hyperparameters": hyperparameters,
                "py_version": py_version,
                "transformers_version": transformers_version,
                "pytorch_version": pytorch_version,
                "tensorflow_version": tensorflow_version,
                **options,
            }
        )


class SKLearn(Framework):
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

    _kind: ClassVar[str] = "SKLearn"

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
        self._begin(
            {
                "entry_point": entry_point,
                "source_dir": source_dir,
                "hyperparameters": hyperparameters,
                "image_uri": image_uri,
                "image_uri_region": image_uri_region,
                "framework_version": framework_version,
                "py_version": _given(py_version),
                **options,
            }
        )


class XGBoost(Framework):
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

    _kind: ClassVar[str] = "XGBoost"

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
        self._begin(
            {
                "entry_point": entry_point,
                "source_dir": source_dir,
                "hyperparameters": hyperparameters,
                "image_uri": image_uri,
                "image_uri_region": image_uri_region,
                "framework_version": framework_version,
                "py_version": _given(py_version),
                **options,
            }
        )


def _given(py_version: str | None) -> str | None:
    # The default of AWS's SDK: nobody asked for a version, so none is named as unused.
    return None if py_version == "py3" else py_version


# The classes by their names, which requests have.
ESTIMATORS: dict[str, type[Estimator]] = {
    kind.__name__: kind for kind in (Estimator, PyTorch, TensorFlow, MXNet, HuggingFace, SKLearn, XGBoost)
}
