"""The pods of one attempt that is over, as `controller.attempt_end` sees them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from herringbone.backends.kubernetes.ledger import Ledger
from herringbone.backends.kubernetes.logs import without_number
from herringbone.backends.kubernetes.states import PodState, end_columns, verdict_of
from herringbone.controller.attempt_end import EndedHosts
from herringbone.controller.attempts import Saved
from herringbone.controller.hosts import Restart
from herringbone.controller.retry import announced, policies_of, with_progress
from herringbone.records.index import LIMITS, STOPPED
from herringbone_contract.errors import KubernetesError
from herringbone_contract.events.format import EVENT_MARK, parse
from herringbone_contract.failure import Failure

if TYPE_CHECKING:
    from herringbone.controller.artifacts import Bases
    from herringbone.controller.retry import Attempt
    from herringbone.controller.verdict import Verdict
    from herringbone.plan.plan import JobPlan


class NotNowError(Exception):
    """The API server did not take a change of the ledger; everything is read again."""

    def __init__(self, refusal: KubernetesError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class PodHosts(EndedHosts):
    """`states` are those of the attempt's hosts that ended, or were lost.

    `read_log` returns the end of a pod's log, `write` changes the ledger if nobody else has.
    """

    hourly_cost = None
    events = Path("unused")
    compress = True

    def __init__(
        self,
        plan: JobPlan,
        ledger: Ledger,
        states: Sequence[PodState],
        *,
        read_log: Callable[[str], bytes],
        write: Callable[[Ledger], None],
    ) -> None:
        self.job, self._plan, self._ledger, self._states = plan.job_name, plan, ledger, states
        self.retries, self.policies = plan.options.max_retry_attempts or 0, policies_of(plan.options)
        self.earlier = ledger.failed
        self.machines = {state.host: state.node for state in states if state.node}
        self._read_log, self._write = read_log, write
        self._saved: Saved | None = None
        over = [state for state in states if state.phase == "over"]
        self._ended = max((state.ended for state in over), default=0.0) or time.time()
        started = [state.started for state in states if state.started is not None]
        self._spent = ledger.spent + (max(0.0, self._ended - min(started)) if started else 0.0)

    def judge(self) -> Verdict:
        over = [state for state in self._states if state.phase == "over"]
        return verdict_of(over, stopped=self._ledger.stop is not None, limit=self._plan.limiting_option)

    @property
    def has_others(self) -> bool:
        return True

    @property
    def stopping(self) -> str:
        if self._ledger.stop is not None:
            return STOPPED
        return LIMITS[self._plan.limiting_option] if self._plan.time_limit - self._spent < 1 else ""

    def logs(self) -> Mapping[str, str]:
        return {state.host: self._log(state) for state in self._states if state.pod}

    def say(self, text: str) -> None:
        print(f"[{self._plan.hosts[0].name}] {text}", flush=True)

    def restart(self, failed: Attempt) -> Restart:
        last = self.earlier[-1] if self.earlier else None
        newest = self._saved or (Saved(last.checkpoint, last.saved) if last and last.checkpoint else None)
        failed = announced(with_progress(failed, newest, self.earlier), self.retries, {})
        times = (*self._ledger.times, self._ended)
        self._write_or_wait(
            self._ledger.next(hosts=None, failed=(*self.earlier, failed), times=times, spent=self._spent)
        )
        self.say(failed.announced)
        return Restart.HERE

    def collect(self, verdict: Verdict) -> None:
        # The results are in the claim.
        pass

    def release(self) -> None:
        pass

    def output(self) -> None:
        return None

    def bases(self) -> Bases:
        return []

    def packing_is_ended(self) -> bool:
        return False

    def send(self, model: Path | None) -> Path | None:
        return model

    def failure_of(self, error: Exception) -> Failure:
        return Failure(exception=type(error).__name__, message=str(error))

    def finish(self, verdict: Verdict, model: Path | str | None) -> None:  # noqa: ARG002
        self._write_or_wait(msgspec.structs.replace(self._ledger, end=end_columns(verdict, self._ended)))

    def _write_or_wait(self, ledger: Ledger) -> None:
        try:
            self._write(ledger)
        except KubernetesError as error:
            # `end_attempt` would take it for a job that cannot be restarted.
            raise NotNowError(error) from error

    def _log(self, state: PodState) -> str:
        """Return what a host's ranks have written last, and note the newest checkpoint among its events."""
        prefix, lines = f"[{state.host}] ".encode(), []
        for line in map(without_number, self._read_log(state.pod).splitlines()):
            words = line.removeprefix(prefix)
            if words is line or words == line:
                lines.append(line)
            elif words.startswith(EVENT_MARK) and (event := parse(words[len(EVENT_MARK) :])) is not None:
                self._note(event)
        return b"\n".join(lines).decode("utf-8", "replace")

    def _note(self, event: Mapping[str, object]) -> None:
        if event["kind"] == "checkpoint":
            with contextlib.suppress(KeyError, TypeError, ValueError):
                saved = Saved(str(event["path"]), int(float(str(event["t"])) * 1e9))
                self._saved = max(filter(None, (self._saved, saved)), key=lambda each: each.modified)
