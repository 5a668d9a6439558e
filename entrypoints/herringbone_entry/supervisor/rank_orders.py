"""Send one order to a rank, and wait for its answer without blocking the loop; `channel.attach` describes the files."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from herringbone_contract.files import write_whole
from herringbone_entry import processes
from herringbone_entry.channel import attach
from herringbone_entry.event_loop import Loop

_POLL_SECONDS = 0.05
_MAX_ANSWER_BYTES = 1 << 20
Answer = dict[str, Any]
# The type of `sys.remote_exec` (PEP 768): a pid and the path of a program.
RemoteExec = Callable[[int, str], None]
REMOTE_EXEC: RemoteExec | None = getattr(sys, "remote_exec", None)


class RankOrder:
    """One order to the rank with a pid, with `members` of its own; `on_answer` gets the answer, or an `error`, once.

    >>> RankOrder(loop, folder, 4711, "debug", identifier, on_answer).send(seconds=20.0)     # doctest: +SKIP
    """

    def __init__(
        self,
        loop: Loop,
        folder: str,
        pid: int,
        order: str,
        identifier: str,
        on_answer: Callable[[Answer], None],
        remote_exec: RemoteExec | None = REMOTE_EXEC,
        members: Mapping[str, Any] = {},
    ) -> None:
        self._loop, self._folder, self._pid, self._on_answer = loop, folder, pid, on_answer
        self._content = {**members, "order": order, "id": f"{identifier}-{pid}"}
        self._path = f"{folder}/order-{pid}.json"
        self._answer_path = f"{folder}/answer-{self._content['id']}.json"
        self._program_path = f"{folder}/order-{pid}.py"
        self._remote_exec = remote_exec
        self._deadline = 0.0
        self._seconds = 0.0

    def send(self, seconds: float) -> None:
        """Write the order, wake the rank, and expect the answer within `seconds`."""
        self._seconds, self._deadline = seconds, time.monotonic() + seconds
        if not self._folder:
            return self._on_answer({"error": "this host has no folder for orders; set TMPDIR to one that it may write"})
        try:
            # The last step makes it visible, and fails if an earlier order is still there.
            write_whole(self._path, json.dumps(self._content).encode(), exclusive=True)
        except FileExistsError:
            return self._on_answer(
                {"error": "the rank has not taken an earlier order yet; its main thread is in a library"}
            )
        except OSError as error:
            return self._on_answer({"error": f"the order cannot be written: {error}"})
        if not self._wake():
            self._remove()
            return self._on_answer({"error": "the rank takes no orders: it only starts, or it runs another program"})
        self._loop.later(_POLL_SECONDS, self._look)
        return None

    def _wake(self) -> bool:
        """Wake the rank; return whether it can be."""
        try:
            # Non-blocking: without a reader this fails at once.
            fifo = os.open(f"{self._folder}/wake-{self._pid}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # With its default action the signal would kill the rank.
            if not processes.handles(self._pid, attach.ORDER_SIGNAL):
                return self._inject()
            processes.send(self._pid, attach.ORDER_SIGNAL)
            return True
        try:
            os.write(fifo, b"\n")
        except OSError:
            return False
        finally:
            os.close(fifo)
        return True

    def _inject(self) -> bool:
        """Have a rank without the signal's handler take the order, which Python 3.14 can; return whether it will."""
        if self._remote_exec is None:
            return False
        program = f"from herringbone_entry.ranks import orders; orders.obey({self._folder!r})\n"
        try:
            file = os.open(self._program_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, program.encode())
            finally:
                os.close(file)
            self._remote_exec(self._pid, self._program_path)
        # RuntimeError: another version of Python, or no Python. PermissionError: the system forbids it.
        except (OSError, RuntimeError, ValueError):
            return False
        return True

    def _look(self) -> None:
        try:
            with open(self._answer_path, "rb") as file:  # noqa: PTH123
                text = file.read(_MAX_ANSWER_BYTES)
        except OSError:
            if time.monotonic() < self._deadline:
                self._loop.later(_POLL_SECONDS, self._look)
                return
            self._remove()
            waits = "its main thread is in a library, where Python runs no signal handlers"
            self._on_answer({"error": f"the rank did not answer within {self._seconds:g} s; perhaps {waits}"})
            return
        self._remove()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        self._on_answer(answer if isinstance(answer, dict) else {"error": "the rank's answer cannot be read"})

    def _remove(self) -> None:
        for path in (self._path, self._answer_path, self._program_path):
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108
