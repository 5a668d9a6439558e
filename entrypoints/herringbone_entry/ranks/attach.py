"""How a rank meets the supervisor of its host: the names both use, and what each says.

Two ways to attach, one conversation:

    started by the supervisor     an inherited socket, named by `REPORT`; standard output is a pipe already
    started by mpirun             the rank looks up its host in `LAYOUT`, and connects to that host's socket in
                                  `RUN_FOLDER`; its pipes come over the socket

    rank       -> supervisor      {"kind": "hello", "rank", "pid"}
    supervisor -> rank            {"environment", "code", "entry", "program", "arguments", "paths", "secrets"}
                                  (+ two pipes)
    rank       -> supervisor      {"kind": "leaving", "code", "exception", "message", "frames"}; waits for any answer
                                  or {"kind": "done"} before a normal end

A rank imports this before the user's first line: nothing heavy here.
"""

from __future__ import annotations

REPORT = "HERRINGBONE_REPORT_FD"
LAYOUT = "HERRINGBONE_LAYOUT"
RUN_FOLDER = "HERRINGBONE_RUN_DIR"

# Where mpirun and its daemons keep their own files. Open MPI 4 tells each rank so under another name, and refuses both.
SESSION_FOLDERS = tuple(
    f"{prefix}_{side}_tmpdir_base" for prefix in ("OMPI_MCA_orte", "PRTE_MCA_prte") for side in ("local", "remote")
)

# How MPI launchers tell a process its number, in the order in which we trust them.
MPI_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def host_of(rank: int, layout: str) -> str:
    """Return the host of a rank, from the layout as `Layout.encode` wrote it.

    >>> host_of(2, "algo-1:2,algo-2:2")
    'algo-2'
    """
    first = 0
    for part in layout.split(","):
        host, _, count = part.rpartition(":")
        first += int(count)
        if rank < first:
            return host
    raise LookupError(f"rank {rank} is beyond the layout {layout}")


def socket_path(run_folder: str, host: str) -> str:
    """Return where a host's supervisor listens for its ranks."""
    return f"{run_folder}/{host}.sock"
