"""`sagemaker.estimator`: the generic estimator, whose first argument is the image, and the base of the others."""

from __future__ import annotations

from functools import partial
from typing import Any

import herringbone
from sagemaker import _absent
from sagemaker._notebook import Notebook


class Framework(Notebook, herringbone.Framework):
    """See `herringbone.Framework`."""


class Estimator(Notebook, herringbone.Estimator):
    """See `herringbone.Estimator`; the order of the arguments is that of SDK v2."""

    def __init__(
        self,
        image_uri: str | None = None,
        role: str | None = None,
        instance_count: int | None = None,
        instance_type: str | None = None,
        **options: Any,
    ) -> None:
        # Herringbone's first argument is the script, which comes by keyword here.
        given = {"image_uri": image_uri, "role": role, "instance_count": instance_count, "instance_type": instance_type}
        super().__init__(**{name: value for name, value in given.items() if value is not None}, **options)


# Its subclasses are all estimators, for scripts that ask.
EstimatorBase = Notebook
__getattr__ = partial(_absent.absent, __name__)
