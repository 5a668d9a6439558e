"""Orders of the supervisor to this rank that need Python in it, such as to start a debugger.

    signal handler, in the main thread  --+--> obey() --> a thread of the order --> answer-ID.json
    listener thread, if there is one    --+

`channel.attach` describes the files. They are in a folder that only the job's user can open, and an order names what to
do; it holds no code. Nothing here may fail the training, so all errors become answers.
"""

from __future__ import annotations

import _thread
import contextlib
import importlib
import json
import os

# Here, in the main thread: Python takes the first thread that imports this module for the main one, and a debugger
# would take the end of an order's thread for the end of the program.
import threading as threading
from typing import Any

from herringbone_contract.files import write_whole

# The name of an order -> its module, imported when the first such order comes. Its function `obey(order)` returns the
# members of the answer.
_MODULES = {
    "debug": "herringbone_entry.ranks.debugger",
    "entries": "herringbone_entry.ranks.recorder.entries",
    "flight_record": "herringbone_entry.ranks.recorder.flight_record",
}
_MAX_ORDER_BYTES = 4096
_WAKE_BYTES = 64


def listen(folder: str) -> None:
    """Start a thread that waits for orders, also while the main thread is in a library. A forked child has none."""
    path = f"{folder}/wake-{os.getpid()}"
    # A full or read-only disk: orders then come by the signal alone.
    with contextlib.suppress(OSError):
        os.mkfifo(path, 0o600)
        # Open for both, so that the FIFO has no end when a supervisor closes it.
        fifo = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        # Not `threading.Thread`: the script would see it among its own threads.
        _thread.start_new_thread(_wait, (fifo, folder))


def obey(folder: str) -> None:
    """Take the order in the folder and carry it out in a thread; without an order, do nothing."""
    order = take(f"{folder}/order-{os.getpid()}.json")
    if order is not None:
        # In a thread: a debugger takes seconds to load, and the handler of a signal holds the script up.
        _thread.start_new_thread(_carry_out, (order, folder))


def take(path: str) -> dict[str, Any] | None:
    """Return the order in a file and remove the file; None without one."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib may not be loaded in this process
            text = file.read(_MAX_ORDER_BYTES)
        os.unlink(path)  # noqa: PTH108
        order = json.loads(text)
    except (OSError, ValueError):
        return None
    return order if isinstance(order, dict) else None


def _wait(fifo: int, folder: str) -> None:
    while os.read(fifo, _WAKE_BYTES):
        obey(folder)


def _carry_out(order: dict[str, Any], folder: str) -> None:
    try:
        answer = importlib.import_module(_MODULES[order["order"]]).obey(order)
    except BaseException as error:  # noqa: BLE001 - also what a library raises to end a process
        answer = {"error": f"{type(error).__name__}: {error}"}
    path = f"{folder}/answer-{order['id']}.json"
    # Without an answer the supervisor stops waiting.
    with contextlib.suppress(OSError, TypeError, ValueError):
        write_whole(path, json.dumps(answer).encode())
