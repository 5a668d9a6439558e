"""`sagemaker_training.entry_point`: run a script of the job as a process of this one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from herringbone import HerringboneError, UnsupportedError
from herringbone_contract.constants import Key
from herringbone_entry.preparation.code import Program, find_program
from sagemaker_training import environment, files, modules, runner
from sagemaker_training.errors import ClientError, ExecuteUserScriptError


def run(
    uri: str,
    user_entry_point: str,
    args: Sequence[str],
    env_vars: Mapping[str, str] | None = None,
    wait: bool = True,
    capture_error: bool = False,
    runner_type: runner.RunnerType = runner.ProcessRunnerType,
    **settings: Any,
) -> subprocess.Popen[str]:
    """Install and run a script of the code at `uri` with these arguments, and return its process.

    >>> run("/opt/ml/code", "train.py", ["--epochs", "3"])         # doctest: +SKIP

    `uri` is a folder, in which the script then runs, or an archive or an s3:// address, which is unpacked to
    `code_dir`.
    With `wait`, raises `ExecuteUserScriptError` for an exit code other than 0; with `capture_error`, the error has what
    the script wrote to standard error. Raises `ClientError` for a script that does not exist, and `UnsupportedError`
    for a runner that starts several processes: `distribution` of a job does that.
    """
    refused = {**settings, "runner_type": None if runner_type is runner.ProcessRunnerType else runner_type}
    for name, value in refused.items():
        if value:
            raise UnsupportedError(
                f"entry_point.run: {name}={value}: ranks are started by the job's `distribution`; leave it out"
            )
    try:
        folder = files.code_folder(uri)
        install(user_entry_point, folder, capture_error)
        command = [*_command(find_program(Path(folder), {Key.PROGRAM: user_entry_point})), *args]
    except UnsupportedError:
        raise
    except HerringboneError as error:
        raise ClientError(f"entry_point.run: {error}") from error
    environment.write_env_vars(env_vars)
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE if capture_error else None, text=True)
    if wait:
        _, output = process.communicate()
        if capture_error:
            sys.stderr.write(output)
        if process.returncode:
            raise ExecuteUserScriptError(command, process.returncode, output)
    return process


def install(name: str, path: str = environment.code_dir, capture_error: bool = False) -> None:
    """Install what a script needs: its folder where that is a package, else the folder's requirements.txt."""
    del name
    if path not in sys.path:
        sys.path.insert(0, path)
    modules.install_code(path, capture_error)


def _command(program: Program) -> list[str]:
    if program.entry == "module":
        return [sys.executable, "-m", program.name]
    if program.entry == "script":
        return [sys.executable, program.name]
    return [program.name, *program.leading]
