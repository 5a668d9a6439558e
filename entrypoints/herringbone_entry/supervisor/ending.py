"""The end of one host's part: kill remaining processes, write how the job ended, and leave."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone_contract.constants import HostVariable
from herringbone_contract.failure import STOPPED_CODE
from herringbone_entry import processes
from herringbone_entry.host_context import HostContext
from herringbone_entry.supervisor.membership import Membership

if TYPE_CHECKING:
    from herringbone_contract.failure import Failure
    from herringbone_entry.channel.messages import Finish

# Modules for the end are loaded this long after the start, when they delay nobody's first line.
_LOAD_SECONDS = 0.5
# Killed processes need a moment to go, so look again after this time, and after a second more seldom.
_LOOK_AGAIN_SECONDS, _LATER_SECONDS = 0.02, 0.5
# One that has begun to end gives back its memory, which takes long for hundreds of GB. One that has not waits in the
# kernel, or is frozen: after this time it is left to the kernel.
_EXIT_SECONDS, _STUCK_SECONDS = 120.0, 15.0


class Ending:
    """Ends this host's part once; `on_kill` is called each time when remaining processes have got SIGKILL."""

    def __init__(self, context: HostContext, membership: Membership, on_kill: Callable[[], None]) -> None:
        self._context, self._membership, self._on_kill = context, membership, on_kill
        self._begun = False
        context.loop.later(_LOAD_SECONDS, load_modules)

    def begin(self, finish: Finish) -> None:
        """Kill remaining processes, then write the job's end to this host's files and leave; a second call is void."""
        if not self._begun:
            self._begun = True
            self._kill_remaining(finish, time.monotonic())

    def _kill_remaining(self, finish: Finish, since: float) -> None:
        # A process may start another while we look, so repeat until none is left. As the subreaper of all of them
        # this process has a child as long as any lives.
        processes.kill_descendants()
        self._on_kill()
        # Children are collected by the supervisor's `reap` when SIGCHLD arrives; this only looks.
        if not processes.has_children():
            self._leave(finish)
            return
        waited = time.monotonic() - since
        stuck = [pid for pid in processes.descendants(os.getpid(), processes.parents()) if not processes.is_ending(pid)]
        if waited < (_STUCK_SECONDS if stuck else _EXIT_SECONDS):
            pause = _LOOK_AGAIN_SECONDS if waited < 2 * _LATER_SECONDS else _LATER_SECONDS
            self._context.loop.later(pause, lambda: self._kill_remaining(finish, since))
            return
        for pid in stuck:
            # A controller leaves this machine out of the next attempts (`retry.unkillable`).
            self._context.log(f"cannot be ended: process {pid} ({processes.name_and_state(pid)}) did not take SIGKILL")
        self._leave(finish)

    def _leave(self, finish: Finish) -> None:
        host = self._context.host
        code, text = finish["code"], finish["failure"]
        if text is not None:
            from herringbone_contract.failure_text import parse_failure

            cause = parse_failure(text)
            self._roll_back(cause)
            self._fail(cause)
        elif code == 0:
            try:
                Path(host.paths.success).touch()
            except OSError as error:
                from herringbone_entry.supervisor import failure

                # If this file cannot be written, the job's results are likely to be incomplete, too.
                code = 1
                self._fail(failure.of_error(host.name, error))
        self._membership.leave(code)

    def _roll_back(self, cause: Failure) -> None:
        """Set checkpoints aside that are newer than the fault, if that is its answer: no rank writes any more."""
        from herringbone_contract.checkpoint.roll_back import roll_back
        from herringbone_contract.faults.policies import ROLL_BACK, answer

        host = self._context.host
        if cause.bad is None or answer(cause.fault, host.fault_policies) != ROLL_BACK:
            return
        names = roll_back(Path(host.checkpoints), cause.bad, job=host.job_name)
        if (holder := host.environ.get(HostVariable.HOLDER)) is not None:
            from herringbone_contract.memory.link import forget

            # Nobody sets aside a part of what is in memory.
            forget(holder)
        if names:
            self._context.log(f"roll_back: set aside, as hidden entries of the folder: {', '.join(names)}")
        if cause.bad.end is None and host.is_first:
            self._context.log(
                "roll_back: the data is NOT passed over: no step of the loss, or no place in the data, is known. A loop"
                " with Training, Trainer or Lightning has one, if each loss has its `step`"
            )

    def _fail(self, cause: Failure) -> None:
        """Write the failure; every host writes the same one, so that any host's files explain the job."""
        from herringbone_entry.supervisor import failure

        if not failure.write(self._context.host.paths, cause):
            # The lines of the log, which the record repeats, may make it too long for an event.
            for record in (cause, cause._replace(log_tail=(), frames=())):
                with contextlib.suppress(ValueError):
                    self._context.send_event({"kind": "failure", "t": time.time(), "record": record.to_json()})
                    break
        # The head alone: the rank's own lines above have its traceback.
        is_stop = cause.fault and cause.exit_code == STOPPED_CODE
        self._context.log(f"{'stopped' if is_stop else 'failed'}: {cause.head}")


def load_modules() -> None:
    """Import what reports of failures and stops need: the package may be upgraded or removed while the job runs."""
    import linecache
    import traceback

    from herringbone_contract import failure_text, masking
    from herringbone_contract.checkpoint import roll_back
    from herringbone_contract.memory import link
    from herringbone_entry.health import memory
    from herringbone_entry.observer import checkpoints
    from herringbone_entry.supervisor import failure

    _ = linecache, traceback, failure_text, failure, link, memory, masking, checkpoints, roll_back
