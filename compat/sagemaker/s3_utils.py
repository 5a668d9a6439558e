"""`sagemaker.s3_utils`: addresses of S3."""

from __future__ import annotations

from functools import partial

from sagemaker import _absent
from sagemaker.s3 import is_s3_url, parse_s3_url, s3_path_join

__all__ = ["is_s3_url", "parse_s3_url", "s3_path_join"]
__getattr__ = partial(_absent.absent, __name__)
