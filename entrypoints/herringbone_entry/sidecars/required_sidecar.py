"""A sidecar that must run as long as the ranks do: a helper's server, a parameter server, or their scheduler."""

from __future__ import annotations

import signal

from herringbone_contract.failure import Failure, exit_code_of, lost_process
from herringbone_entry.host_context import HostContext
from herringbone_entry.sidecars.sidecar import Sidecar


class RequiredSidecar:
    """Watches a sidecar until `end` or `kill`; `name` names it in messages.

    Its end before that is reported to the coordinator. A sidecar that `may_leave` may exit with 0 earlier: the ranks
    ask it to, shortly before their own end.
    """

    def __init__(self, sidecar: Sidecar, name: str, context: HostContext, *, may_leave: bool = False) -> None:
        # None once it has ended: its pid may then be another process's.
        self._sidecar: Sidecar | None = sidecar
        self._name, self._context, self._may_leave = name, context, may_leave
        self._ending = False
        context.watched.append(lambda: {} if self._sidecar is None else {self._name: self._sidecar.pid})

    @property
    def runs(self) -> bool:
        """True if its process has not been reaped yet."""
        return self._sidecar is not None

    def end(self) -> None:
        """Ask it to end: the job is over."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it by force."""
        self._signal(signal.SIGKILL)

    def reaped(self, pid: int, returncode: int) -> None:
        """Note that a child of this process has ended; another child is ignored."""
        if self._sidecar is None or pid != self._sidecar.pid:
            return
        last_lines, killed = self._sidecar.last_lines(), self._sidecar.was_killed(returncode)
        self._sidecar = None
        if self._ending or (not returncode and self._may_leave):
            return
        code, event = exit_code_of(returncode), f"{self._name} ended before the ranks did"
        if killed:
            self._report(lost_process(self._context.host.name, event, code, last_lines), killed=True)
        else:
            self.fail(code, event, last_lines)

    def fail(self, code: int, message: str, last_lines: tuple[str, ...] = ()) -> None:
        """Report that it failed."""
        self._report(Failure(self._context.host.name, None, code, "", message, (), last_lines))

    def _report(self, failure: Failure, *, killed: bool = False) -> None:
        self._context.report(
            {"kind": "server_ended", "code": failure.exit_code, "killed": killed, "failure": failure.to_json()}
        )

    def _signal(self, number: signal.Signals) -> None:
        # An end that we asked for is no failure, whatever its exit code.
        self._ending = True
        if self._sidecar is not None:
            self._sidecar.signal(number)
