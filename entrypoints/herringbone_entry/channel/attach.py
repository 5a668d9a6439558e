"""Names and messages by which a rank attaches to the supervisor of its host.

A rank attaches in one of two ways, and the conversation is the same:

    started by the supervisor     the rank inherits a socket, named by `REPORT`; its standard output is a pipe already
    started by mpirun             the rank looks up its host in `LAYOUT` and connects to that host's socket in
                                  `RUN_FOLDER`; its pipes arrive over the socket

    rank       -> supervisor      {"kind": "hello", "rank", "pid"}
    supervisor -> rank            {"environment", "code", "entry", "program", "arguments", "paths", "secrets",
                                  "listen", "orders"} (+ two pipes)
    rank       -> supervisor      {"kind": "leaving", "code", "exception", "message", "frames", "record"}; waits for
                                  any answer; or {"kind": "done"} at a normal end, and {"kind": "over"}
                                  when only Python's teardown remains

After the start message the supervisor sends nothing over this link: its end is what the rank watches it for. An order
comes as a file in the folder `orders`:

    supervisor    writes order-PID.json, and then wakes the rank: through the FIFO wake-PID, if the rank listens in a
                  thread, else by ORDER_SIGNAL, else on Python 3.14 by sys.remote_exec
    rank          removes the order, carries it out in a thread, writes answer-ID.json

A rank imports this module before the user's first line, so it imports nothing itself.
"""

from __future__ import annotations

REPORT = "HERRINGBONE_REPORT_FD"
# A prewarmed rank that executes a new Python: the descriptors of what it has read, and of those that came with that.
RESUMED = "HERRINGBONE_RESUMED_FDS"
LAYOUT = "HERRINGBONE_LAYOUT"
RUN_FOLDER = "HERRINGBONE_RUN_DIR"

# The signal that announces an order to a rank: SIGRTMIN + 5, which no library of the field uses. A plain number,
# because systems without real-time signals (macOS) lack the name.
ORDER_SIGNAL = 39
# The signal at which a rank writes its Python stacks to its file `stacks-PID` in the folder for orders: SIGRTMIN + 11.
STACKS_SIGNAL = 45

# The number of operations that torch's flight recorder keeps. torch before 2.8 reads the second name, and later
# releases warn about it: `ranks.import_hooks` renames the variable there.
RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000"}
OLD_RECORDER = "TORCH_NCCL_TRACE_BUFFER_SIZE"

# mpirun and its daemons keep files in these folders. Open MPI 4 passes the folder to each rank under another name, and
# refuses a rank that finds both names.
SESSION_FOLDERS = tuple(
    f"{prefix}_{side}_tmpdir_base" for prefix in ("OMPI_MCA_orte", "PRTE_MCA_prte") for side in ("local", "remote")
)

# MPI launchers tell a process its number in one of these variables; the most trustworthy one comes first.
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
    """Return the path at which a host's supervisor listens for its ranks."""
    return f"{run_folder}/{host}.sock"
