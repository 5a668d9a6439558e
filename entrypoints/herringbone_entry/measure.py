"""Measure one step of a job's script, as rank 0 would run it: `python -m herringbone_entry.measure OPTION ...`.

    SAGEMAKER_BASE_DIR=/tmp/x/ml python -m herringbone_entry.measure --ranks 4 --local-ranks 2 --gpus 0 -- --output FILE

`plan` has filled the host's tree. This process is replaced by `python -m herringbone_parallel.torch.measure` with the
words after `--` and the script, in the environment of rank 0. The script's arguments may be secrets, and all users of a
machine can read the words of a command, so they are in that environment. No supervisor runs, and nobody listens at the
address of rank 0. The current folder must hold no modules: `-m` looks there first.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from herringbone_contract.distribution import Distribution
from herringbone_contract.errors import HerringboneError, UnsupportedError
from herringbone_contract.hyperparameters import arguments, decode
from herringbone_contract.layout import RankPlacement
from herringbone_entry.channel.rendezvous import Rendezvous
from herringbone_entry.enter import run
from herringbone_entry.host import Host, read_host
from herringbone_entry.preparation import devices
from herringbone_entry.preparation.code import code_of, fill, find_program
from herringbone_entry.preparation.prepare import Prepared, find_python
from herringbone_entry.preparation.shims import shims
from herringbone_entry.ranks.environment import contract_environment, python_environment
from herringbone_entry.supervisor.start_message import start_message

_MEASURE = "herringbone_parallel.torch.measure"
_ARGUMENTS = "SM_USER_ARGS"
_LOOPBACK = "127.0.0.1"
# Nobody connects: the process group is a fake one.
_PORT = 29_500
_USAGE_CODE = 2


def main(words: Sequence[str] | None = None, replace: Callable[[list[str], dict[str, str]], int] = run) -> NoReturn:
    """Replace this process by the one that measures."""
    parser = argparse.ArgumentParser(prog="python -m herringbone_entry.measure")
    parser.add_argument("--ranks", type=int, required=True, help="the ranks of the job")
    parser.add_argument("--local-ranks", type=int, required=True, help="the ranks of its first host")
    parser.add_argument("--gpus", type=int, required=True, help="the GPUs of that host")
    parser.add_argument("options", nargs="*", help="options of the measuring program, after --")
    given = parser.parse_args(words)
    try:
        host = read_host(os.environ)
        placement = RankPlacement(
            rank=0,
            local_rank=0,
            host=host.name,
            host_index=0,
            num_local=given.local_ranks,
            num_hosts=len(host.resources.hosts),
            world_size=given.ranks,
        )
        command, environment = command_of(host, placement, given.gpus)
    except HerringboneError as error:
        print(f"herringbone: {error}", file=sys.stderr)
        sys.exit(_USAGE_CODE)
    python, *paths, script = command
    words = ["--arguments-in", _ARGUMENTS, "--paths", os.pathsep.join(paths), script]
    sys.exit(replace([python, "-m", _MEASURE, *given.options, *words], environment))


def command_of(host: Host, placement: RankPlacement, gpus: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return a rank's Python, its first search paths, its script, and its environment; fills an empty code folder.

    Raises `UnsupportedError` for an entry point that is no Python script, and the errors of `prepare`.
    """
    distribution = decode(host.raw_hyperparameters)
    code = Path(host.paths.code)
    fill(code, code_of(host.steering), environ=host.environ)
    program = find_program(code, host.steering)
    if program.entry != "script":
        raise UnsupportedError(
            f"entry_point: {program.name} is no Python script, and only those can be measured; plan without measuring"
        )
    python = find_python(host, code, program, lambda line: print(f"measure: {line}", file=sys.stderr))
    prepared = Prepared(
        launcher=distribution.launcher,
        program=program,
        arguments=(*program.leading, *arguments(host.hyperparameters)),
        python=python,
        environment={
            **contract_environment(host, num_cpus=devices.num_cpus(), num_gpus=gpus),
            **_library_settings(distribution),
        },
        shims=shims(distribution.launcher, code, python, version2=distribution.model_parallel_v2 is not None),
        num_processes=placement.num_local,
        sharding=distribution.model_parallel_v2,
    )
    rendezvous = Rendezvous(_LOOPBACK, _PORT, _PORT + 1)
    message = start_message(placement, prepared, host, rendezvous=rendezvous, variables={}, interface=None, token="")
    # Without the code's folder, where a module of the user's could hide one that the measuring program imports.
    pythons = python_environment(host.base_environment, code="", shims=prepared.shims)
    environment = {**host.base_environment, **message["environment"], **pythons}
    return (python, *message["first_paths"], message["program"]), environment


def _library_settings(distribution: Distribution) -> dict[str, str]:
    if distribution.data_parallel is None:
        return {}
    from herringbone_entry.launchers.data_parallel import settings

    return settings(distribution.data_parallel)


if __name__ == "__main__":
    main()
