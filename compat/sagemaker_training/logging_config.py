"""`sagemaker_training.logging_config`: the toolkit's logger."""

from __future__ import annotations

import logging
import sys

_FORMAT = "%(asctime)s %(name)-12s %(levelname)-8s %(message)s"


def get_logger() -> logging.Logger:
    """Return the logger `sagemaker-training-toolkit`."""
    return logging.getLogger("sagemaker-training-toolkit")


def configure_logger(level: int, log_format: str = _FORMAT) -> None:
    """Send log records of this level and above to standard output, unless the program has set up logging itself."""
    logging.basicConfig(format=log_format, level=level, stream=sys.stdout)
    get_logger().setLevel(level)
