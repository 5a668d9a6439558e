"""`sagemaker.pytorch.estimator`."""

from __future__ import annotations

from functools import partial

import herringbone
from sagemaker import _alone
from sagemaker._notebook import Notebook


class PyTorch(Notebook, herringbone.PyTorch):
    """See `herringbone.PyTorch`."""


__getattr__ = partial(_alone.refuse, __name__)
