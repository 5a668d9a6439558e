"""`sagemaker.tensorflow.estimator`."""

from __future__ import annotations

from functools import partial

import herringbone
from sagemaker import _absent
from sagemaker._notebook import Notebook


class TensorFlow(Notebook, herringbone.TensorFlow):
    """See `herringbone.TensorFlow`."""


__getattr__ = partial(_absent.absent, __name__)
