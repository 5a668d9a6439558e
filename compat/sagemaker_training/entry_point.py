"""`sagemaker_training.entry_point`: run a script of the job as a process of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from herringbone import UnsupportedError
from sagemaker_training.errors import ClientError, ExecuteUserScriptError


def run(
    uri: str,
    user_entry_point: str,
    args: Sequence[str],
    env_vars: Mapping[str, str] | None = None,
    wait: bool = True,
    capture_error: bool = False,
    **settings: Any,
) -> subprocess.Popen[str]:
    """Run a script of the folder `uri` with these arguments, and return its process.

    >>> run("/opt/ml/code", "train.py", ["--epochs", "3"])         # doctest: +SKIP

    With `wait`, raises `ExecuteUserScriptError` for an exit code other than 0; with `capture_error`, the error has what
    the script wrote to standard error. A name that ends in .py runs in this Python, any other one is a program. Raises
    `UnsupportedError` for a runner that starts several processes: `distribution` of a job does that.
    """
    for name, value in settings.items():
        if value:
            raise UnsupportedError(
                f"entry_point.run: {name}: ranks are started by the job's `distribution`; leave it out"
            )
    folder = Path(uri.removeprefix("file://"))
    if not (folder / user_entry_point).is_file():
        raise ClientError(
            f"entry_point.run: {folder / user_entry_point}: no such file; uri must be a folder of this host"
        )
    program = [sys.executable, user_entry_point] if user_entry_point.endswith(".py") else [f"./{user_entry_point}"]
    command = [*program, *args]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **(env_vars or {})},
        stderr=subprocess.PIPE if capture_error else None,
        text=True,
    )
    if wait:
        _, output = process.communicate()
        if capture_error:
            sys.stderr.write(output)
        if process.returncode:
            raise ExecuteUserScriptError(command, process.returncode, output)
    return process
