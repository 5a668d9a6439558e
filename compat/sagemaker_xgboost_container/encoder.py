"""`sagemaker_xgboost_container.encoder`: what a script's functions that host call."""

from __future__ import annotations

from sagemaker_containers.beta.framework import hosting

__getattr__ = hosting(__name__)
