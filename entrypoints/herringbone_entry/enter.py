"""Run a command, by default a shell, as a rank would start: `python -m herringbone_entry.enter [COMMAND ARGUMENT ...]`.

It starts in the folder of the job's code and has the `SM_*` variables, which come from the host's tree. It lacks the
job's `environment` and the credentials, which only the supervisor knows, and the variables of one rank (`RANK`).
A command that begins with `-m` is a module of this Python.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from herringbone_contract.errors import HerringboneError
from herringbone_contract.resources import num_gpus
from herringbone_entry.host import read_host
from herringbone_entry.inherited import inherited
from herringbone_entry.preparation import devices
from herringbone_entry.ranks.environment import contract_environment, python_environment

# The codes of a shell for a program that is not there, and for one that cannot be run.
_NOT_FOUND_CODE, _NOT_EXECUTABLE_CODE = 127, 126
_SHELLS = ("bash", "sh")


def main() -> None:
    """Replace this process by the command."""
    command = sys.argv[1:] or [shell_of(os.environ)]
    if command[0] == "-m":
        command = [sys.executable, *command]
    try:
        host = read_host(os.environ)
    except HerringboneError as error:
        sys.exit(f"herringbone: {error}")
    cpus, gpus = devices.num_cpus(), num_gpus(os.environ)
    code, mine = str(host.paths.code), inherited(os.environ)
    variables = contract_environment(host, num_cpus=cpus, num_gpus=gpus)
    environment = {**mine, **variables, **python_environment(mine, code=code)}
    os.chdir(code if os.path.isdir(code) else host.paths.output)  # noqa: PTH112
    sys.exit(run(command, environment))


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Replace this process by the command; return the shell's exit code if that is not possible."""
    try:
        os.execvpe(command[0], list(command), dict(environment))  # noqa: S606 - no shell between
    except FileNotFoundError:
        print(f"herringbone: {command[0]}: no such program on this host", file=sys.stderr)
        return _NOT_FOUND_CODE
    except OSError as error:
        print(f"herringbone: {command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_EXECUTABLE_CODE


def shell_of(environ: Mapping[str, str]) -> str:
    """Return the user's shell, or one that this host has."""
    return next((shell for shell in (environ.get("SHELL", ""), *_SHELLS) if shell and shutil.which(shell)), "sh")


if __name__ == "__main__":
    main()
