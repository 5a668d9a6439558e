"""`sagemaker_training.trainer`: run the training of a container from its files to its exit code."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import traceback

from herringbone import HerringboneError
from sagemaker_training import environment, errors, files, intermediate_output, logging_config, params

SUCCESS_CODE = 0
DEFAULT_FAILURE_CODE = 1
_MAX_CODE = 255
_logger = logging_config.get_logger()


def train() -> None:
    """Run the framework's function that SAGEMAKER_TRAINING_MODULE names, else Herringbone's own `train`, and exit.

    >>> train()                                                            # doctest: +SKIP

    Writes `success` or `failure`, and sends intermediate output to `sagemaker_s3_output` meanwhile. The code of the
    exit is the script's own; a framework's function that raises an `OSError` gives its `errno`, others 1.
    """
    sync = None
    try:
        env = environment.Environment()
        logging_config.configure_logger(env.log_level)
        region = os.environ.get("AWS_REGION", os.environ.get(params.REGION_NAME_ENV))
        endpoint = os.environ.get(params.S3_ENDPOINT_URL)
        sync = intermediate_output.start_sync(env.sagemaker_s3_output(), region, endpoint_url=endpoint)
        code = _call_framework(env.framework_module) if env.framework_module else _run_program()
        if code == SUCCESS_CODE:
            files.write_success_file()
        else:
            files.write_failure_file(f"the training program ended with exit code {code}")
    except (errors.ClientError, HerringboneError) as error:
        code = _report(str(error), DEFAULT_FAILURE_CODE)
    except Exception as error:  # noqa: BLE001 - whatever a framework raises ends its job with a reason
        number = getattr(error, "errno", None)
        valid = isinstance(number, int) and SUCCESS_CODE < number <= _MAX_CODE
        text = f"Framework Error: \n{traceback.format_exc()}\n{error}"
        code = _report(text, number if valid else DEFAULT_FAILURE_CODE)
    if sync is not None:
        sync.join()
    _exit_processes(code)


def _call_framework(name: str) -> int:
    module, _, function = name.partition(":")
    getattr(importlib.import_module(module), function)()
    return SUCCESS_CODE


def _run_program() -> int:
    """Run Herringbone's program for a host, which starts ranks as the job's `distribution` says."""
    environment.write_env_vars()
    process = subprocess.Popen([sys.executable, "-m", "herringbone_entry"])
    # This process may be the container's first one, and alone receives the platform's signal to stop.
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number)) if is_main else None
    try:
        code = process.wait()
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
    return code if code >= 0 else 128 - code


def _report(text: str, code: int) -> int:
    files.write_failure_file(text)
    _logger.error("Reporting training FAILURE\n%s", text)
    return code


def _exit_processes(exit_code: int) -> None:
    """End this process. A function of its own, because tests of frameworks replace it."""
    sys.exit(exit_code)
