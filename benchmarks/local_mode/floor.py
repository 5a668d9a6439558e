"""The time of containers and mpirun alone: the `docker` command, without our code or the peer's.

1x1      docker run IMAGE python hello.py
2x2mpi   a network and two containers, which start at the same time. mpirun in the first container starts its daemon in
         the second one through a pipe, which is faster than ssh. The end removes everything.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

# mpirun's launch agent, which stands in for ssh: send the daemon's command to the other container, wait for its end.
AGENT = 'shift; printf "%s\\n" "$*" >/floor/start; read done </floor/end'
# mpirun resolves the other container's name, which fails before that container has started.
FIRST = "read up </floor/up; "
# `1<>` opens the pipe for reading and writing, which never blocks: mpirun may exit without waiting for its agent.
SECOND = 'echo up >/floor/up; read command </floor/start; eval "$command"; echo done 1<>/floor/end'
MPIRUN = (
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 "
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_plm_ssh_agent='/bin/sh /floor/agent' exec "
    "mpirun -n 4 --host algo-1:2,algo-2:2 --map-by slot:OVERSUBSCRIBE --bind-to none --prtemca plm ssh "
    "--leave-session-attached python /floor/hello.py"
)
Listen = Callable[[list[str]], None]


def alone(image: str, script: Path, listen: Listen) -> None:
    """Run the script in one container. `listen` runs a command and records its lines."""
    listen(["docker", "run", "--rm", "--volume", f"{script}:/hello.py:ro", image, "python", "/hello.py"])


def mpi(image: str, script: Path, folder: Path, listen: Listen) -> None:
    """Run the script on two hosts of two ranks. `folder` must be empty; both containers mount it."""
    for name in ("up", "start", "end"):
        os.mkfifo(folder / name)
    (folder / "agent").write_text(AGENT)
    (folder / "hello.py").write_bytes(script.read_bytes())
    network = f"local-mode-floor-{os.getpid()}"
    second = f"{network}-2"
    _docker("network", "create", network)

    def host(name: str, command: str, *options: str) -> list[str]:
        return [
            *("docker", "run", "--rm", "--hostname", name, "--network", network, "--network-alias", name, *options),
            *("--volume", f"{folder}:/floor", image, "sh", "-c", command),
        ]

    try:
        other = subprocess.Popen(host("algo-2", SECOND, "--name", second))
        try:
            listen(host("algo-1", FIRST + MPIRUN))
        except BaseException:
            _docker("rm", "--force", second)
            raise
        finally:
            other.wait()
    finally:
        _docker("network", "rm", network)


def _docker(*arguments: str) -> None:
    subprocess.run(["docker", *arguments], check=True, stdout=subprocess.DEVNULL)
