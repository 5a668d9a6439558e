"""Have this rank listen for a debugger: debugpy on a free port of the loopback interface.

debugpy asks nobody for a proof: who reaches the port can run code as the job's user. See docs/understand/security.md.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any

_LOOPBACK = "127.0.0.1"
_lock = threading.Lock()
# debugpy listens once in the life of a process; `_lock` guards it.
_port: int | None = None


def obey(order: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - an order to debug has no parameters
    """Listen, unless this process does so already, and return {port, python, executable, debugpy}, or an `error`."""
    global _port
    # It would write a warning about Python's frozen modules, of which none is the user's, into the job's log.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    try:
        import debugpy
    except ImportError as error:
        return {
            "error": f"debugpy cannot be imported there ({error}); add the line `debugpy` to the requirements.txt in "
            "source_dir, or install it in the image or the Python that runs the job, and start the job again"
        }
    with _lock:
        if _port is None:
            # The workers of a data loader would stop, too, and wait for debuggers of their own.
            debugpy.configure(subProcess=False)
            os.register_at_fork(after_in_child=leave)
            _, _port = debugpy.listen((_LOOPBACK, 0))
    return {
        "port": _port,
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "debugpy": str(debugpy.__version__),
    }


# debugpy replaces `settrace` by a function that warns.
def leave(set_trace: Any = sys.settrace, monitoring: Any = None) -> None:
    """Take the debugger out of a forked child, which would stop at the rank's breakpoints and wait for ever."""
    set_trace(None)
    # Python 3.12 has another way to watch a program, and debugpy uses it.
    monitoring = monitoring or getattr(sys, "monitoring", None)
    if monitoring is None or monitoring.get_tool(monitoring.DEBUGGER_ID) is None:
        return
    for event in vars(monitoring.events).values():
        # Some names stand for several events, or for none.
        with contextlib.suppress(ValueError):
            monitoring.register_callback(monitoring.DEBUGGER_ID, event, None)
