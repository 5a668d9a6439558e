"""Follow a job whose machines retry it: this process records what they have agreed on, and decides nothing itself.

no failure            complete the job, as for any other
a newer attempt       fetch the logs of this one, and go on with the next
the job is over       complete it with the verdict of the machines
neither yet           look again later
no majority is left   after the time in which ranks end that are cut off: decide, as for any other job
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from herringbone.backends.lifecycle import change_state
from herringbone.backends.ssh.attempts.current import CurrentAttempt, split_attempt
from herringbone.backends.ssh.attempts.lease import is_quorum
from herringbone.backends.ssh.finish.retry import RestartableHosts
from herringbone.backends.ssh.transport.protocol import ask_each
from herringbone.controller.attempt_end import end_attempt
from herringbone.controller.retry import describe_attempts
from herringbone.controller.verdict import Verdict
from herringbone.records.index import COMPLETED, RESTARTING
from herringbone.records.state_lines import last_message
from herringbone_contract.errors import HostError
from herringbone_contract.failure_text import parse_failure

_ANSWER_SECONDS = 20.0
_AGAIN_SECONDS = 2.0


class ObservedHosts(RestartableHosts):
    """The hosts of an attempt, about which their machines decide."""

    _over: dict[str, Any] | None = None

    @property
    def has_others(self) -> bool:
        return self._over is None

    def judge(self) -> Verdict:
        if self._over is None or self._lacks_results:
            return super().judge()
        failure = self._over["failure"]
        return Verdict(
            self._over["status"], self._over["secondary_status"], None if failure is None else parse_failure(failure)
        )

    def _end(self) -> None:
        if self.judge().failure is None:
            end_attempt(self)
            return
        members = self._attempt.members
        lost = {state.machine for state in self._states if state.lost}
        answers = self._ask(members.keys() - lost)
        if not is_quorum(list(members), {name for name, answer in answers.items() if answer.get("alive")}):
            # A machine that is lost takes its time to answer, and the others may know what follows.
            answers |= self._ask(lost)
        known = [answer for answer in answers.values() if "order" in answer]
        newest = max(known, key=lambda answer: tuple(answer["order"]), default=None)
        number = split_attempt(self._attempt.name)[1]
        value = {} if newest is None else newest["value"]
        newer = msgspec.convert(value["attempt"], CurrentAttempt) if value else self._attempt
        latest = split_attempt(newer.name)[1]
        # Machines agree on an attempt before they start it, which takes a while.
        told = [answers[name].get("known", ()) for name in newer.machine_names.values() if answers.get(name)]
        has_begun = bool(told) and all(newer.name in names for names in told)
        if latest > number + 1 or (latest > number and has_begun):
            self._follow(newer, number)
        elif value.get("over"):
            self._over, self.retries = value["over"], 0
            end_attempt(self)
        elif self.stopping:
            end_attempt(self)
        elif self._is_left_to_us(answers, newest):
            self._attempt = msgspec.structs.replace(self._attempt, members={})
            end_attempt(self)
        else:
            self._tell_wait(answers, _wait_of(newest))
            self.looks_again_at = time.monotonic() + _AGAIN_SECONDS

    def _tell_wait(self, answers: Mapping[str, Mapping[str, Any]], wait: float) -> None:
        """Say for which machines the next attempt waits; after `wait` where the others may decide without them."""
        members = self._attempt.members
        away = [name for name in members if not answers.get(name, {}).get("alive")]
        may_decide = is_quorum(list(members), members.keys() - set(away))
        if not away or (may_decide and time.time() < max(state.ended for state in self._states) + wait):
            return
        text = (
            f"{self._attempt.name} is over, and the next attempt waits for {', '.join(away)}"
            f"{'' if may_decide else ', without which the other machines may not decide'}; "
            f"`herringbone stop {self.job}` ends the job"
        )
        # Not into the log: its next lines come from the machines.
        if last_message(self._index.get(self.job)) != text:
            columns = {"secondary_status": RESTARTING, "description": describe_attempts(self.earlier, text)}
            change_state(self._index, self.job, columns)

    @property
    def _lacks_results(self) -> bool:
        """Report whether the job completed, and a machine that has some of its results cannot be reached from here."""
        completed = self._over is not None and self._over["status"] == COMPLETED
        return completed and self.has_lost

    @property
    def _may_start(self) -> bool:
        try:
            self._check_startable()
        except HostError:
            return False
        return True

    def _ask(self, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return what these machines know of the job's attempts; {} for one that does not answer."""
        # One that could go on by itself, on other machines, says so: they leave the job to it where they cannot.
        request = {"ask": "attempts", "job": self.job, "may_start": self._may_start}
        machines = [machine for name, machine in self._attempt.members.items() if name in names]
        answers = ask_each(self._transport, machines, request, timeout=_ANSWER_SECONDS)
        return {
            machine.name: {} if isinstance(answer, HostError) else answer
            for machine, answer in zip(machines, answers, strict=True)
        }

    def _follow(self, newer: CurrentAttempt, number: int) -> None:
        """Record the attempt after attempt `number`, which the machines have started."""
        if split_attempt(newer.name)[1] == number + 1:
            names = newer.machine_names
        else:
            names = dict(newer.failed[number].machines)
        # Before the log of the next attempt: it follows this one's in the file here.
        self.logs()
        machines = {host: self._attempt.members[name] for host, name in names.items()}
        self._record_attempt(newer.failed[number - 1], machines)

    def _is_left_to_us(self, answers: dict[str, dict[str, Any]], newest: dict[str, Any] | None) -> bool:
        """Report whether the machines do not go on, and ranks of machines that are cut off have ended.

        They have left the job to a client that can go on, which may be another one; or no majority of keepers can come
        back.
        """
        members = self._attempt.members
        gone = {name for name, answer in answers.items() if answer.get("alive") is False}
        noted = self._folder.path / "keepers.gone"
        has_left = newest is not None and "over" in newest["value"]
        if has_left and self._may_start:
            return True
        if not has_left and is_quorum(list(members), members.keys() - gone):
            noted.unlink(missing_ok=True)
            return False
        if not noted.exists():
            noted.touch()
        return time.time() > noted.stat().st_mtime + _wait_of(newest)


def _wait_of(newest: Mapping[str, Any] | None) -> float:
    """Return the seconds after which ranks of machines that are cut off have ended."""
    return 60.0 if newest is None else float(newest["wait"])
