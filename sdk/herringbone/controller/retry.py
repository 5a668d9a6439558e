"""The rules for a restart: whether a failed job gets another attempt, and without which machines. Pure.

SageMaker's rule comes first: a failure of the platform is retried, a failure of the script is not. Patterns in the logs
(policies) can overrule it. docs/do/resume.md has the table.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from herringbone.controller.attempts import Saved
from herringbone.controller.verdict import Verdict
from herringbone.records.index import RESTARTING
from herringbone_contract.errors import LaunchError

RESTART, EXCLUDE_HOST, BLAME_SILENT_HOST, FAIL = "restart", "exclude_host", "blame_silent_host", "fail"
# Asked in this order, after the user's own policies.
DEFAULT_POLICIES: Mapping[str, str] = MappingProxyType(
    {
        # The same batch would run out of memory again.
        r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError": FAIL,
        # Errors of the GPU itself: memory, bus, link. The Xid numbers are from NVIDIA's list.
        r"uncorrectable (ECC|NVLink) error|double[- ]bit ECC|GPU has fallen off the bus"
        r"|NVRM: Xid \(.*\): (48|63|64|74|79|94|95),": EXCLUDE_HOST,
        # The ranks that waited print this; the rank that they waited for prints nothing.
        r"Watchdog caught collective operation timeout|NCCL (communicator was aborted|timeout)": BLAME_SILENT_HOST,
    }
)
# After this many attempts in a row without a newer checkpoint, no other one follows.
_FRUITLESS = 3
# A machine that was blamed for this many failed attempts is excluded from the next ones.
_BLAMED_OFTEN = 2
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class PolicyMatch:
    """A policy whose pattern matched: `hosts` are those whose logs match, `line` is the first matching line."""

    pattern: str
    action: str
    hosts: tuple[str, ...]
    line: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One failed attempt.

    `machines` maps each host to its machine or node; `blamed` and `excluded` are names of machines. `why` is one line,
    and `announced` the log line that announced the next attempt. `checkpoint` is the name of the newest one at its end,
    "" without any, and `saved` the time at which that was written, in ns.
    """

    number: int
    machines: Mapping[str, str]
    why: str = ""
    blamed: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    announced: str = ""
    checkpoint: str = ""
    saved: int = 0


def policies_of(user_policies: Mapping[str, str]) -> dict[str, str]:
    """Return all policies in the order in which they are asked, the user's own first.

    >>> list(policies_of({"flaky": "restart"}).items())[0]
    ('flaky', 'restart')
    """
    defaults = {pattern: action for pattern, action in DEFAULT_POLICIES.items() if pattern not in user_policies}
    return {**user_policies, **defaults}


def find_policy(policies: Mapping[str, str], logs: Mapping[str, str]) -> PolicyMatch | None:
    """Return the first policy whose pattern matches a host's log; None when no policy matches.

    >>> find_policy({"ECC error": "exclude_host"}, {"algo-1": "step 1", "algo-2": "a\\nCUDA ECC error\\nb"})
    PolicyMatch(pattern='ECC error', action='exclude_host', hosts=('algo-2',), line='CUDA ECC error')
    """
    for pattern, action in policies.items():
        compiled = re.compile(pattern)
        matches = {host: match for host, text in logs.items() if (match := compiled.search(text)) is not None}
        if matches:
            return PolicyMatch(pattern, action, tuple(matches), _line_of(next(iter(matches.values()))))
    return None


def decide(
    verdict: Verdict, match: PolicyMatch | None, machines: Mapping[str, str], earlier: Sequence[Attempt], retries: int
) -> Attempt | None:
    """Return the attempt that just failed, with the machines that the next one must avoid; None to end the job.

    >>> from herringbone_contract.failure import Failure
    >>> lost = Verdict("Failed", "Failed", Failure(host="algo-2", exit_code=137), lost="algo-2")
    >>> decide(lost, None, {"algo-1": "n1", "algo-2": "n2"}, [], retries=1).why
    'algo-2 on n2 was lost (exit code 137, killed by SIGKILL)'

    `earlier` are the job's failed attempts before this one, `retries` is the number of restarts that it may have. Empty
    `machines` mean that all hosts are on one machine, so that none can be excluded and a policy that wants to ends the
    job.
    """
    failure = verdict.failure
    if failure is None or len(earlier) >= retries or (match is not None and match.action == FAIL):
        return None
    if match is None and verdict.lost is None:
        return None
    if match is not None and match.action == EXCLUDE_HOST and not machines:
        return None
    blamed = _machines_of(_blamed_hosts(verdict, match, list(machines)), machines)
    named = _machines_of(match.hosts, machines) if match is not None and _excludes(match, machines) else ()
    times = Counter(machine for attempt in earlier for machine in attempt.blamed)
    often = tuple(machine for machine in blamed if times[machine] + 1 >= _BLAMED_OFTEN)
    return Attempt(
        number=len(earlier) + 1,
        machines=dict(machines),
        why=_why(verdict, match, machines),
        blamed=blamed,
        excluded=tuple(dict.fromkeys([*named, *often])),
    )


def describe_attempts(attempts: Sequence[Attempt]) -> str:
    """Return failed attempts as the JSON of a job's description, under SageMaker's names where it has some.

    >>> json.loads(describe_attempts([Attempt(1, {"algo-1": "n1"}, "why", announced="attempt 2 of 2")]))["Attempts"]
    [{'Attempt': 1, 'Hosts': {'algo-1': 'n1'}, 'FailureReason': 'why', 'ExcludedHosts': []}]
    """
    return json.dumps(
        {
            "SecondaryStatusTransitions": [
                {"Status": RESTARTING, "StatusMessage": attempt.announced} for attempt in attempts
            ],
            "Attempts": [
                {
                    "Attempt": attempt.number,
                    "Hosts": dict(attempt.machines),
                    "FailureReason": attempt.why,
                    "ExcludedHosts": list(attempt.excluded),
                }
                for attempt in attempts
            ],
        }
    )


def excluded_machines(attempts: Sequence[Attempt]) -> dict[str, str]:
    """Return the machines that no further attempt may use, each with the reason."""
    return {machine: attempt.why for attempt in attempts for machine in attempt.excluded}


def announcement(attempt: Attempt, retries: int, machines: Mapping[str, str]) -> str:
    """Return the log line that announces the next attempt, on these machines.

    >>> lost = Attempt(1, {}, "algo-2 on n2 was lost", checkpoint="step-40.pt")
    >>> announcement(lost, 3, {"algo-1": "n1", "algo-2": "n3"})
    'attempt 2 of 4: algo-2 on n2 was lost; restarting on n1, n3; newest checkpoint: step-40.pt'
    """
    names = ", ".join(dict.fromkeys(machines.values()))
    on = f" on {names}" if names else ""
    without = f", without {', '.join(attempt.excluded)} from now on" if attempt.excluded else ""
    newest = f"newest checkpoint: {attempt.checkpoint}" if attempt.checkpoint else "there is no checkpoint"
    return f"attempt {attempt.number + 1} of {retries + 1}: {attempt.why}; restarting{on}{without}; {newest}"


def with_progress(attempt: Attempt, newest: Saved | None, earlier: Sequence[Attempt]) -> Attempt:
    """Return the attempt with the newest checkpoint at its end.

    Raises `LaunchError` when this attempt and the two before it have ended without a newer one. Each began there, and
    the steps that it took are lost, so another one most likely ends as they did, whatever `max_retry_attempts` allows.
    One and two such attempts are bad luck, as between two checkpoints that are far apart. Steps themselves do not
    count: a restart keeps none. A job that saves no checkpoints always begins anew, and has all of its attempts.
    """
    if newest is None:
        return attempt
    before = earlier[-_FRUITLESS:]
    if len(before) == _FRUITLESS and all((one.checkpoint, one.saved) == newest for one in before):
        raise LaunchError(
            f"no new step since checkpoint {newest.name} in {_FRUITLESS} attempts, which all began there; the log of "
            "each says what ended it. Save more often if they only were too short; `herringbone run --resume NAME` "
            "then goes on from that checkpoint"
        )
    return replace(attempt, checkpoint=newest.name, saved=newest.modified)


def announced(attempt: Attempt, retries: int, machines: Mapping[str, str]) -> Attempt:
    """Return the attempt with the line that announces the next one, on these machines."""
    return replace(attempt, announced=announcement(attempt, retries, machines))


def _excludes(match: PolicyMatch, machines: Mapping[str, str]) -> bool:
    """Report whether the match excludes machines: a pattern in every host's log singles out none of them."""
    return match.action == EXCLUDE_HOST and (len(match.hosts) < len(machines) or len(machines) == 1)


def _blamed_hosts(verdict: Verdict, match: PolicyMatch | None, hosts: Sequence[str]) -> Sequence[str]:
    if match is not None and match.action == EXCLUDE_HOST:
        return match.hosts
    if match is not None and match.action == BLAME_SILENT_HOST:
        silent = [host for host in hosts if host not in match.hosts]
        # When most hosts are silent, silence is not what singles out the faulty one.
        return silent if len(silent) < len(match.hosts) else ()
    return () if verdict.lost is None else (verdict.lost,)


def _why(verdict: Verdict, match: PolicyMatch | None, machines: Mapping[str, str]) -> str:
    assert verdict.failure is not None
    if match is not None:
        hosts = ", ".join(_host_on_machine(host, machines) for host in match.hosts)
        return f"{match.action} by the log of {hosts}: {match.line!r}"
    assert verdict.lost is not None
    return f"{_host_on_machine(verdict.lost, machines)} was lost ({verdict.failure.what})"


def _host_on_machine(host: str, machines: Mapping[str, str]) -> str:
    machine = machines.get(host, host)
    return host if machine == host else f"{host} on {machine}"


def _machines_of(hosts: Sequence[str], machines: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(machines[host] for host in hosts if host in machines)


def _line_of(match: re.Match[str]) -> str:
    text = match.string
    begin = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.start())
    return text[begin : end if end >= 0 else len(text)].strip()[:_SHOWN_CHARS]
