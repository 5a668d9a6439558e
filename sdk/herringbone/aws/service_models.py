"""The loader of the AWS service models, which come with botocore."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from herringbone_contract.errors import UnsupportedError


@cache
def shared_loader() -> Any:
    """Return the loader that plans and Herringbone's own sessions share, because reading one model takes 0.1 s.

    Raises `UnsupportedError` where botocore is not installed.
    """
    try:
        from botocore.loaders import create_loader
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "instance types ml.* need botocore to check the request; install it with: pip install boto3"
        ) from error
    return create_loader(os.environ.get("AWS_DATA_PATH"))
