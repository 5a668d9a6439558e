"""What containers and mpirun cost by themselves: the `docker` command, and nothing of ours or the peer's.

1x1      docker run IMAGE python hello.py
2x2mpi   a network and two containers, started at the same time; mpirun in the first one starts its daemon in the second
         one by a pipe between the two, which is quicker than any ssh; all of it is removed
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

# mpirun's remote-launch agent: hands the daemon's command line to the other container, and stays until that is done.
AGENT = 'shift; printf "%s\\n" "$*" >/floor/start; read done </floor/end'
# mpirun looks the other container's name up, which has an address from its start on.
FIRST = "read up </floor/up; "
# Opened for both, a pipe blocks nobody: mpirun may have left without waiting for its agent.
SECOND = 'echo up >/floor/up; read command </floor/start; eval "$command"; echo done 1<>/floor/end'
MPIRUN = (
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 "
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_plm_ssh_agent='/bin/sh /floor/agent' exec "
    "mpirun -n 4 --host algo-1:2,algo-2:2 --map-by slot:OVERSUBSCRIBE --bind-to none --prtemca plm ssh "
    "--leave-session-attached python /floor/hello.py"
)
Listen = Callable[[list[str]], None]


def alone(image: str, script: Path, listen: Listen) -> None:
    """Run the script in one container; `listen` runs a command and hears its lines."""
    listen(["docker", "run", "--rm", "--volume", f"{script}:/hello.py:ro", image, "python", "/hello.py"])


def mpi(image: str, script: Path, folder: Path, listen: Listen) -> None:
    """Run the script on two hosts of two ranks; `folder` is empty, and both containers see it."""
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
