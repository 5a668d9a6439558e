"""`sagemaker_training.params`: names of hyperparameters that steer a container."""

from __future__ import annotations

from herringbone_contract.constants import Key

SUBMIT_DIR_PARAM = Key.SUBMIT_DIRECTORY
USER_PROGRAM_PARAM = Key.PROGRAM
LOG_LEVEL_PARAM = Key.LOG_LEVEL
JOB_NAME_PARAM = Key.JOB_NAME
REGION_NAME_PARAM = Key.REGION
