"""Checks for a TensorFlow that is missing or too old, and for a Keras that runs on another framework."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from herringbone_contract.errors import ParallelError

_MINIMUM = (2, 16)


def require_tensorflow() -> None:
    """Raise `ParallelError` unless a TensorFlow with Keras 3 is installed."""
    # Reads metadata only: an import of TensorFlow takes seconds, and fails in its own words where it is too old.
    if importlib.util.find_spec("tensorflow") is None:
        raise ParallelError(
            "TensorFlow is not installed in the Python of this rank: add `tensorflow` to the job's requirements.txt, or"
            " use an image that has it"
        )
    for package in ("tensorflow", "tensorflow-cpu"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if tuple(int(part) for part in version.split(".")[:2]) < _MINIMUM:
            raise ParallelError(
                f"{package} {version}: this library needs 2.16 or newer, the first TensorFlow that comes with Keras 3"
            )


def require_keras_on_tensorflow() -> None:
    """Raise `ParallelError` if Keras runs on another framework."""
    import keras

    if keras.config.backend() != "tensorflow":
        raise ParallelError(
            f"Keras runs on {keras.config.backend()} here: set KERAS_BACKEND=tensorflow in the job's `environment`"
        )
