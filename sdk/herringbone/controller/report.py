"""Start the process that writes the report of a job that is over, so that nobody waits for it.

    controller, or a client that settles a job -> start_report -> sh, which ends at once -> `views.page.at_end`

The report is extra: whatever goes wrong there is lost with its process, and `herringbone report` makes one at any time.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "HERRINGBONE_REPORT"
# The program is named and not imported: it stands above the controller.
_WRITER = "herringbone.views.page.at_end"


def start_report(home: str, name: str, spawn: Callable[..., int] = os.posix_spawnp) -> None:
    """Start the process that writes the report of the job `name` into its folder, and return.

    >>> start_report("/home/me/.herringbone", "digits-1")            # doctest: +SKIP

    Does nothing for a job without a folder on this machine, and with HERRINGBONE_REPORT=off.
    """
    if os.environ.get(VARIABLE) == "off" or not os.path.isdir(f"{home}/jobs/{name}/logs"):  # noqa: PTH112 - controllers load no pathlib
        return
    path = os.pathsep.join(map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))))
    environment = {**os.environ, "HERRINGBONE_HOME": home, **({"PYTHONPATH": path} if path else {})}
    # `-m` looks for modules in the current folder first. The shell ends at once, so the writer is nobody's child here:
    # no zombie stays, and whoever waits for this process does not wait for the writer.
    shell = ["sh", "-c", 'cd -- "$0" && exec "$@" </dev/null >/dev/null 2>&1 &', f"{home}/jobs"]
    writer = [sys.executable, "-m", _WRITER, name]
    try:
        pid = spawn("sh", [*shell, *writer], environment, setpgroup=0)
        os.waitpid(pid, 0)
    except OSError:
        # No process can be started, or somebody else has collected the shell.
        return
