"""What to say where TensorFlow is missing or too old, or is not what Keras runs on."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from herringbone_contract.errors import ParallelError

_LEAST = (2, 16)


def require_tensorflow() -> None:
    """Raise `ParallelError` unless there is a TensorFlow with Keras 3."""
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
        if tuple(int(part) for part in version.split(".")[:2]) < _LEAST:
            raise ParallelError(
                f"{package} {version}: this library needs 2.16 or newer, the first TensorFlow that comes with Keras 3"
            )


def require_keras_on_tensorflow() -> None:
    """Raise `ParallelError` where Keras runs on another framework."""
    import keras

    if keras.config.backend() != "tensorflow":
        raise ParallelError(
            f"Keras runs on {keras.config.backend()} here: set KERAS_BACKEND=tensorflow in the job's `environment`"
        )
