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
from typing import TYPE_CHECKING, NamedTuple

from herringbone.controller.attempts import Saved
from herringbone.controller.verdict import Verdict
from herringbone.records.index import RESTARTING
from herringbone_contract.errors import LaunchError
from herringbone_contract.faults.health import DEVICE_ERROR
from herringbone_contract.faults.policies import EXCLUDE_HOST, REPLAN, RESTART, RETRIES, ROLL_BACK, UNHEALTHY, answer

if TYPE_CHECKING:
    from herringbone.plan.options.typed import Options
    from herringbone_contract.failure import Failure

# An action of `log_policies` alone.
BLAME_SILENT_HOST = "blame_silent_host"
# A kind of fault -> the pattern in a host's log that shows it.
LOG_FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "device_error": DEVICE_ERROR,
        # The same batch would run out of memory again.
        "out_of_memory": r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CPUAllocator: can't allocate memory",
        # The ranks that waited print this; the rank that they waited for prints nothing.
        "collective_timeout": r"Watchdog caught collective operation timeout|NCCL communicator was aborted",
    }
)
# A supervisor's words for a process that it cannot end (`supervisor.ending`).
_UNKILLABLE = re.compile(r"cannot be ended: process \d+ ")
# After this many attempts in a row without a newer checkpoint, no other one follows.
_FRUITLESS = 3
# A machine that was blamed for this many failed attempts is excluded from the next ones.
_BLAMED_OFTEN = 2
_SHOWN_CHARS = 200


class Policies(NamedTuple):
    """The user's wishes about faults: `logs` maps a pattern in a log to an action, `faults` a kind to an answer.

    The first one decides that applies: the user's own patterns in their order, the fault for which a watcher ended the
    attempt, a broken device, a lost host, the other patterns of LOG_FAULTS.
    """

    logs: Mapping[str, str] = MappingProxyType({})
    faults: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PolicyMatch:
    """A rule that applies: the `action` that it asks for, the hosts that it is about, and the line that shows it.

    `fault` is the kind of fault, "" for a pattern of the user's.
    """

    action: str
    hosts: tuple[str, ...]
    line: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One failed attempt.

    `machines` maps each host to its machine or node; `blamed` and `excluded` are names of machines. `why` is one line,
    and `announced` the log line that announced the next attempt. `checkpoint` is the name of the newest one at its end,
    "" without any, and `saved` the time at which that was written, in ns. `fault` is the kind of fault, "" for one
    of the user's patterns, `answer` what it was answered by, and `layout` the one with which the next attempt goes on,
    where it takes another. `next_hosts` is the number of hosts of the next one where that is why this one was ended:
    it has not failed then. 0 is as many as before.
    """

    number: int
    machines: Mapping[str, str]
    why: str = ""
    blamed: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    announced: str = ""
    checkpoint: str = ""
    saved: int = 0
    fault: str = ""
    answer: str = ""
    layout: str = ""
    next_hosts: int = 0


def policies_of(options: Options) -> Policies:
    """Return the policies of a job."""
    return Policies(dict(options.log_policies), dict(options.fault_policies))


def find_policy(policies: Policies, verdict: Verdict, logs: Mapping[str, str]) -> PolicyMatch | None:
    """Return the rule that decides about a failed attempt; None when none applies, as for an error of the script.

    >>> failed = Verdict("Failed", "Failed")
    >>> own = Policies(logs={"ECC error": "exclude_host"})
    >>> find_policy(own, failed, {"algo-1": "step 1", "algo-2": "a\\nCUDA ECC error\\nb"})
    PolicyMatch(action='exclude_host', hosts=('algo-2',), line='CUDA ECC error', fault='')
    """
    for pattern, action in policies.logs.items():
        if match := _search(pattern, logs):
            return PolicyMatch(action, *match)
    failure = verdict.failure
    if failure is not None and failure.fault:
        hosts = () if failure.host is None else (failure.host,)
        return PolicyMatch(answer(failure.fault, policies.faults), hosts, failure.message, failure.fault)
    if match := _search(LOG_FAULTS["device_error"], logs):
        return PolicyMatch(answer("device_error", policies.faults), *match, "device_error")
    if failure is not None and verdict.lost is not None:
        # What a script says of memory or of time before that, it has survived.
        return PolicyMatch(answer("host_lost", policies.faults), (verdict.lost,), failure.what, "host_lost")
    memory = LOG_FAULTS["out_of_memory"]
    if (match := _search(memory, logs)) and not _is_another(failure, memory):
        return PolicyMatch(answer("out_of_memory", policies.faults), *match, "out_of_memory")
    if match := _search(LOG_FAULTS["collective_timeout"], logs):
        action = answer("collective_timeout", policies.faults)
        return PolicyMatch(BLAME_SILENT_HOST if action == RESTART else action, *match, "collective_timeout")
    return None


def unkillable(logs: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts on which a process is left that nobody can end.

    >>> unkillable({"algo-1": "[algo-1] cannot be ended: process 7 (python, D), of rank 0", "algo-2": ""})
    ('algo-1',)
    """
    return tuple(host for host, text in logs.items() if _UNKILLABLE.search(text))


def _is_another(failure: Failure | None, pattern: str) -> bool:
    """Report whether a script has ended by another exception than the pattern's, which it has caught then."""
    texts = () if failure is None or not failure.exception else (failure.what, *failure.log_tail)
    return bool(texts) and not any(re.search(pattern, text) for text in texts)


def _search(pattern: str, logs: Mapping[str, str]) -> tuple[tuple[str, ...], str] | None:
    """Return the hosts whose logs match, and the first matching line."""
    compiled = re.compile(pattern)
    matches = {host: match for host, text in logs.items() if (match := compiled.search(text)) is not None}
    return (tuple(matches), _line_of(next(iter(matches.values())))) if matches else None


def decide(
    verdict: Verdict,
    match: PolicyMatch | None,
    machines: Mapping[str, str],
    earlier: Sequence[Attempt],
    retries: int,
    stuck: Sequence[str] = (),
) -> Attempt | None:
    """Return the attempt that just failed, with the machines that the next one must avoid; None to end the job.

    >>> from herringbone_contract.failure import Failure
    >>> lost = Verdict("Failed", "Failed", Failure(host="algo-2", exit_code=137), lost="algo-2")
    >>> match = find_policy(Policies(), lost, {})
    >>> decide(lost, match, {"algo-1": "n1", "algo-2": "n2"}, [], retries=1).why
    'algo-2 on n2 was lost (exit code 137, killed by SIGKILL)'

    `earlier` are the job's failed attempts before this one, `retries` is the number of restarts that it may have. Empty
    `machines` mean that all hosts are on one machine, so that none can be excluded and a policy that wants to ends the
    job. `stuck` are hosts with a process that nobody can end.
    """
    if verdict.failure is None or match is None or num_failed(earlier) >= retries:
        return None
    if match.action not in (*RETRIES, BLAME_SILENT_HOST) or (match.action == EXCLUDE_HOST and not machines):
        return None
    blamed = _machines_of(_blamed_hosts(verdict, match, list(machines)), machines)
    named = _machines_of([*(match.hosts if _excludes(match, machines) else ()), *stuck], machines)
    times = Counter(machine for attempt in earlier for machine in attempt.blamed)
    often = tuple(machine for machine in blamed if times[machine] + 1 >= _BLAMED_OFTEN)
    return Attempt(
        number=len(earlier) + 1,
        machines=dict(machines),
        why=_why(match, machines),
        blamed=blamed,
        excluded=tuple(dict.fromkeys([*named, *often])),
        fault=match.fault,
        answer=match.action,
    )


def replacements(verdict: Verdict, policies: Policies, earlier: Sequence[Attempt]) -> int:
    """Return how many attempts have ended before their first step, this one included, and excluded an unfit machine.

    They cost nothing and repeat nothing, so another machine is taken whatever `max_retry_attempts` says.
    """
    failure = verdict.failure
    is_one = failure is not None and failure.fault == UNHEALTHY and failure.host is not None
    before = sum(bool(attempt.excluded) and attempt.fault == UNHEALTHY for attempt in earlier)
    return before + (is_one and answer(UNHEALTHY, policies.faults) == EXCLUDE_HOST)


def num_failed(attempts: Sequence[Attempt]) -> int:
    """Return how many of the attempts have failed: one that made way for another number of hosts has not."""
    return sum(not attempt.next_hosts for attempt in attempts)


def describe_attempts(attempts: Sequence[Attempt], waits: str = "") -> str:
    """Return failed attempts as the JSON of a job's description, under SageMaker's names where it has some.

    >>> json.loads(describe_attempts([Attempt(1, {"algo-1": "n1"}, "why", announced="attempt 2 of 2")]))["Attempts"]
    [{'Attempt': 1, 'Hosts': {'algo-1': 'n1'}, 'FailureReason': 'why', 'ExcludedHosts': []}]

    `waits` says what the next attempt waits for.
    """
    messages = [attempt.announced for attempt in attempts] + ([waits] if waits else [])
    return json.dumps(
        {
            "SecondaryStatusTransitions": [{"Status": RESTARTING, "StatusMessage": text} for text in messages],
            "Attempts": [
                {
                    "Attempt": attempt.number,
                    "Hosts": dict(attempt.machines),
                    "FailureReason": attempt.why,
                    "ExcludedHosts": list(attempt.excluded),
                    **({"NextLayout": attempt.layout} if attempt.layout else {}),
                    **({"NextHosts": attempt.next_hosts} if attempt.next_hosts else {}),
                }
                for attempt in attempts
            ],
        }
    )


def excluded_machines(attempts: Sequence[Attempt]) -> dict[str, str]:
    """Return the machines that no further attempt may use, each with the reason."""
    return {machine: attempt.why for attempt in attempts for machine in attempt.excluded}


def announced(attempt: Attempt, retries: int, machines: Mapping[str, str]) -> Attempt:
    """Return the attempt with the log line that announces the next one, on these machines.

    >>> lost = Attempt(1, {}, "algo-2 on n2 was lost", checkpoint="step-40.pt")
    >>> announced(lost, 3, {"algo-1": "n1", "algo-2": "n3"}).announced
    'attempt 2 of 4: algo-2 on n2 was lost; restarting on n1, n3; newest checkpoint: step-40.pt'
    """
    names = ", ".join(dict.fromkeys(machines.values()))
    on = f" on {names}" if names else ""
    without = f", without {', '.join(attempt.excluded)} from now on" if attempt.excluded else ""
    of_layout = f" with the layout {attempt.layout}" if attempt.layout else ""
    newest = f"newest checkpoint: {attempt.checkpoint}" if attempt.checkpoint else "there is no checkpoint"
    text = f"{attempt.why}; restarting{on}{without}{of_layout}; {newest}"
    return replace(attempt, announced=f"attempt {attempt.number + 1} of {max(attempt.number, retries) + 1}: {text}")


def with_progress(attempt: Attempt, newest: Saved | None, earlier: Sequence[Attempt]) -> Attempt:
    """Return the attempt with the newest checkpoint at its end.

    Raises `LaunchError` when this attempt and the two before it have ended without a newer one. Each began there, and
    the steps that it took are lost, so another one most likely ends as they did, whatever `max_retry_attempts` allows.
    One and two such attempts are bad luck, as between two checkpoints that are far apart. Steps themselves do not
    count: a restart keeps none. A job that saves no checkpoints always begins anew, and has all of its attempts.
    """
    if newest is None:
        return attempt
    attempts = [one for one in earlier if one.fault != UNHEALTHY and not one.next_hosts]
    before = [] if attempt.next_hosts else attempts[-_FRUITLESS:]
    if len(before) == _FRUITLESS and all((one.checkpoint, one.saved) == newest for one in before):
        raise LaunchError(
            f"no new step since checkpoint {newest.name} in {_FRUITLESS} attempts, which all began there; the log of "
            "each says what ended it. Save more often if they only were too short; `herringbone run --resume NAME` "
            "then goes on from that checkpoint"
        )
    return replace(attempt, checkpoint=newest.name, saved=newest.modified)


def with_layout(attempt: Attempt, earlier: Sequence[Attempt], layouts: Sequence[str]) -> Attempt:
    """Return the attempt with the layout of the next one, of those that the job may take one after the other.

    >>> with_layout(Attempt(2, {}, answer="replan"), [Attempt(1, {}, layout="a")], ["a", "b"]).layout
    'b'

    Raises `LaunchError` where the job has run out of memory in all of them.
    """
    if attempt.answer != REPLAN:
        return attempt
    taken = num_replanned(earlier)
    if taken >= len(layouts):
        tried = "; ".join(layouts) or "none"
        raise LaunchError(f"no layout of these ranks is left that needs less memory; those that were tried: {tried}")
    return replace(attempt, layout=layouts[taken])


def num_replanned(attempts: Sequence[Attempt]) -> int:
    """Return how many of the attempts were followed by one with another layout."""
    return sum(bool(attempt.layout) for attempt in attempts)


def _excludes(match: PolicyMatch, machines: Mapping[str, str]) -> bool:
    """Report whether the match excludes machines: a pattern in every host's log singles out none of them."""
    return match.action == EXCLUDE_HOST and (len(match.hosts) < len(machines) or len(machines) == 1)


def _blamed_hosts(verdict: Verdict, match: PolicyMatch, hosts: Sequence[str]) -> Sequence[str]:
    if match.action == BLAME_SILENT_HOST:
        silent = [host for host in hosts if host not in match.hosts]
        # When most hosts are silent, silence is not what singles out the faulty one.
        return silent if len(silent) < len(match.hosts) else ()
    if match.action in (ROLL_BACK, REPLAN):
        # The data, or the layout, is at fault.
        return ()
    if match.action == EXCLUDE_HOST or match.fault:
        return match.hosts
    return () if verdict.lost is None else (verdict.lost,)


def _why(match: PolicyMatch, machines: Mapping[str, str]) -> str:
    hosts = ", ".join(_host_on_machine(host, machines) for host in match.hosts)
    if match.fault == "host_lost" and hosts:
        return f"{hosts} was lost ({match.line})"
    if match.fault and match.fault not in LOG_FAULTS:
        # A watcher's own words begin with the kind, and name the machine where they can.
        return match.line if len(match.line) <= _SHOWN_CHARS else f"{match.line[:_SHOWN_CHARS]} ..."
    return f"{match.action} by the log of {hosts}: {match.line!r}"


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
