"""`sagemaker_xgboost_container.distributed`: training on several hosts, which is not here."""

from __future__ import annotations

from typing import Any

from herringbone import UnsupportedError


def rabit_run(*_: Any, **__: Any) -> None:
    """Refuse: AWS's image starts a tracker of XGBoost's between the hosts."""
    raise UnsupportedError(
        "sagemaker_xgboost_container.distributed.rabit_run: train on one host (instance_count=1), which uses all of its"
        " cores; or connect the hosts in the script by xgboost.collective and SM_HOSTS"
    )
