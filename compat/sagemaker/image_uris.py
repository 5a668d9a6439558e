"""`sagemaker.image_uris`: names of AWS's training images."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from herringbone import UnsupportedError
from herringbone.aws.image_uris import image_uri
from sagemaker import _absent
from sagemaker._notebook import region_of


def retrieve(
    framework: str,
    region: str | None = None,
    version: str | None = None,
    py_version: str | None = None,
    instance_type: str | None = None,
    accelerator_type: str | None = None,
    image_scope: str | None = None,
    container_version: str | None = None,
    distribution: Any = None,
    base_framework_version: str | None = None,
    **settings: Any,
) -> str:
    """Return the name of AWS's image for training; `herringbone.aws.image_uris` says for which frameworks.

    >>> retrieve("xgboost", region="us-west-2", version="1.7-1")
    '246618743249.dkr.ecr.us-west-2.amazonaws.com/sagemaker-xgboost:1.7-1'

    Raises `UnsupportedError` for images that do not train.
    """
    # Training images run every distribution, and their tags end in a version of the container only where they must.
    del distribution, container_version
    refused = {"accelerator_type": accelerator_type, **settings}
    if image_scope not in (None, "training"):
        raise UnsupportedError(f"image_uris.retrieve: image_scope {image_scope!r}: Herringbone trains; give 'training'")
    for name, value in refused.items():
        if value not in (None, False):
            raise UnsupportedError(f"image_uris.retrieve: {name}: not served; leave it out, or write the image's name")
    return image_uri(
        framework,
        region=region or region_of(None, os.environ),
        version=version,
        py_version=py_version,
        instance_type=instance_type or "ml.m5.xlarge",
        base_version=base_framework_version,
    )


__getattr__ = partial(_absent.absent, __name__)
