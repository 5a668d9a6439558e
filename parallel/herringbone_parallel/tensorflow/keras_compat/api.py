"""Support for scripts of TensorFlow 2.3 to 2.6 on Keras 3; docs/do/tensorflow-old-scripts.md has the list of calls.

Imports of `smdistributed.modelparallel.tensorflow` and of `horovod` call `activate`. Otherwise Keras stays unchanged,
apart from the names that `resets` adds in every rank.
"""

from __future__ import annotations

import keras

from herringbone_contract.errors import ParallelError
from herringbone_contract.library_hooks import require
from herringbone_parallel.tensorflow.keras_compat import models, namespaces, optimizers, resets, seeds, weights
from herringbone_parallel.tensorflow.library_hooks import KERAS_COMPAT
from herringbone_parallel.tensorflow.patches import Patches

_KERAS = 3
_active: Patches | None = None


def activate() -> None:
    """Make Keras 3 accept old scripts, until `deactivate`; a second call changes nothing.

        activate()
        keras.optimizers.Adam(lr=1e-3).get_gradients(loss, model.trainable_variables)

    Raises `ParallelError` with a Keras that is not version 3.
    """
    global _active
    if _active is not None:
        return
    check_version(keras.__version__)
    require(KERAS_COMPAT)
    patches = Patches()
    resets.add(keras, patches)
    for file in (optimizers, models, seeds, namespaces, weights):
        file.patch(patches)
    _active = patches


def deactivate() -> None:
    """Restore Keras as it was before `activate`."""
    global _active
    if _active is not None:
        _active.undo()
        _active = None


def check_version(version: str) -> None:
    """Raise `ParallelError` unless this is Keras 3: the patches use its internal names."""
    if not version.startswith(f"{_KERAS}."):
        raise ParallelError(
            f"Keras {version}: smdistributed.modelparallel.tensorflow and horovod read old scripts on Keras {_KERAS},"
            " the one of TensorFlow 2.16 and newer. Install that one (`pip install 'keras<4'`), or import"
            " herringbone_parallel.tensorflow.model_parallel.api or .horovod.api, which leave Keras alone"
        )
