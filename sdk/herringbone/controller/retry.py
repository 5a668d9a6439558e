"""Whether a job that failed begins anew, and without which hosts. Pure.

SageMaker's rule comes first: what the platform lost is tried again, what the script did wrong is not. What the logs say
may decide otherwise. docs/resume.md has the table.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from herringbone.controller.verdict import Verdict
from herringbone.jobs.index import RESTARTING

RESTART, EXCLUDE_HOST, BLAME_SILENT_HOST, FAIL = "restart", "exclude_host", "blame_silent_host", "fail"
# In this order, after the user's own.
DEFAULT_POLICIES: Mapping[str, str] = MappingProxyType(
    {
        # It would happen again.
        r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError": FAIL,
        # Memory, the bus, a link: of the GPU itself. Xid numbers as NVIDIA's list of them has it.
        r"uncorrectable (ECC|NVLink) error|double[- ]bit ECC|GPU has fallen off the bus"
        r"|NVRM: Xid \(.*\): (48|63|64|74|79|94|95),": EXCLUDE_HOST,
        # Said by those who waited, not by whom they waited for.
        r"Watchdog caught collective operation timeout|NCCL (communicator was aborted|timeout)": BLAME_SILENT_HOST,
    }
)
# A host that attempts were lost with this often is not taken again.
_BLAMED_OFTEN = 2
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """A policy whose pattern stands in logs: `hosts` are those in whose log it does, `line` the first such line."""

    pattern: str
    action: str
    hosts: tuple[str, ...]
    line: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that failed: `places` says what played each host (a machine, a node), `blamed` and `excluded` are
    places; `why` is one line, and `announced` what was said when the next attempt began.
    """

    number: int
    places: Mapping[str, str]
    why: str = ""
    blamed: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    announced: str = ""


def policies_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return all policies in the order in which they are asked, the user's own first.

    >>> list(policies_of({"flaky": "restart"}).items())[0]
    ('flaky', 'restart')
    """
    return {**given, **{pattern: action for pattern, action in DEFAULT_POLICIES.items() if pattern not in given}}


def find(policies: Mapping[str, str], logs: Mapping[str, str]) -> Finding | None:
    """Return the first policy whose pattern stands in a host's log; None where none does.

    >>> find({"ECC error": "exclude_host"}, {"algo-1": "step 1", "algo-2": "a\\nCUDA ECC error\\nb"})
    Finding(pattern='ECC error', action='exclude_host', hosts=('algo-2',), line='CUDA ECC error')
    """
    for pattern, action in policies.items():
        compiled = re.compile(pattern)
        found = {host: match for host, text in logs.items() if (match := compiled.search(text)) is not None}
        if found:
            return Finding(pattern, action, tuple(found), _line_of(next(iter(found.values()))))
    return None


def decide(
    verdict: Verdict, finding: Finding | None, places: Mapping[str, str], earlier: Sequence[Attempt], retries: int
) -> Attempt | None:
    """Return the attempt that just failed as the next one has to know of it; None where the job is over.

    >>> from herringbone_contract.failure import Failure
    >>> lost = Verdict("Failed", "Failed", Failure(host="algo-2", exit_code=137), lost="algo-2")
    >>> decide(lost, None, {"algo-1": "n1", "algo-2": "n2"}, [], retries=1).why
    'algo-2 on n2 was lost (exit code 137, killed by SIGKILL)'

    `earlier` are the job's failed attempts before this one, `retries` how many more than one it may have. Without
    `places` all hosts are on one machine: none can be left out, and what should be ends the job.
    """
    failure = verdict.failure
    if failure is None or len(earlier) >= retries or (finding is not None and finding.action == FAIL):
        return None
    if finding is None and verdict.lost is None:
        return None
    if finding is not None and finding.action == EXCLUDE_HOST and not places:
        return None
    blamed = _places(_blamed(verdict, finding, list(places)), places)
    named = _places(finding.hosts, places) if finding is not None and _excludes(finding, places) else ()
    times = Counter(place for attempt in earlier for place in attempt.blamed)
    often = tuple(place for place in blamed if times[place] + 1 >= _BLAMED_OFTEN)
    return Attempt(
        number=len(earlier) + 1,
        places=dict(places),
        why=_why(verdict, finding, places),
        blamed=blamed,
        excluded=tuple(dict.fromkeys([*named, *often])),
    )


def described(attempts: Sequence[Attempt]) -> str:
    """Return failed attempts as a job's description, under SageMaker's names where it has some.

    >>> json.loads(described([Attempt(1, {"algo-1": "n1"}, "why", announced="attempt 2 of 2")]))["Attempts"]
    [{'Attempt': 1, 'Hosts': {'algo-1': 'n1'}, 'FailureReason': 'why', 'ExcludedHosts': []}]
    """
    return json.dumps(
        {
            "SecondaryStatusTransitions": [
                {"Status": RESTARTING, "StatusMessage": each.announced} for each in attempts
            ],
            "Attempts": [
                {
                    "Attempt": each.number,
                    "Hosts": dict(each.places),
                    "FailureReason": each.why,
                    "ExcludedHosts": list(each.excluded),
                }
                for each in attempts
            ],
        }
    )


def excluded(attempts: Sequence[Attempt]) -> dict[str, str]:
    """Return the places that no further attempt may have, each with why."""
    return {place: attempt.why for attempt in attempts for place in attempt.excluded}


def announcement(attempt: Attempt, retries: int, places: Mapping[str, str], checkpoint: str | None) -> str:
    """Say that the attempt after this one begins, on these places, with this file as the newest of its checkpoints.

    >>> announcement(Attempt(1, {}, "algo-2 on n2 was lost"), 3, {"algo-1": "n1", "algo-2": "n3"}, "step-40.pt")
    'attempt 2 of 4: algo-2 on n2 was lost; beginning anew on n1, n3; newest checkpoint: step-40.pt'
    """
    where = ", ".join(dict.fromkeys(places.values()))
    without = f", without {', '.join(attempt.excluded)} from now on" if attempt.excluded else ""
    on = f" on {where}" if where else ""
    from_there = f"newest checkpoint: {checkpoint}" if checkpoint else "there is no checkpoint"
    return f"attempt {attempt.number + 1} of {retries + 1}: {attempt.why}; beginning anew{on}{without}; {from_there}"


def _excludes(finding: Finding, places: Mapping[str, str]) -> bool:
    """What every host says tells nothing of one of them."""
    return finding.action == EXCLUDE_HOST and (len(finding.hosts) < len(places) or len(places) == 1)


def _blamed(verdict: Verdict, finding: Finding | None, hosts: Sequence[str]) -> Sequence[str]:
    if finding is not None and finding.action == EXCLUDE_HOST:
        return finding.hosts
    if finding is not None and finding.action == BLAME_SILENT_HOST:
        silent = [host for host in hosts if host not in finding.hosts]
        return silent if len(silent) < len(finding.hosts) else ()
    return () if verdict.lost is None else (verdict.lost,)


def _why(verdict: Verdict, finding: Finding | None, places: Mapping[str, str]) -> str:
    assert verdict.failure is not None
    if finding is not None:
        where = ", ".join(_named(host, places) for host in finding.hosts)
        return f"{finding.action} by the log of {where}: {finding.line!r}"
    assert verdict.lost is not None
    return f"{_named(verdict.lost, places)} was lost ({verdict.failure.what})"


def _named(host: str, places: Mapping[str, str]) -> str:
    place = places.get(host, host)
    return host if place == host else f"{host} on {place}"


def _places(hosts: Sequence[str], places: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(places[host] for host in hosts if host in places)


def _line_of(match: re.Match[str]) -> str:
    text = match.string
    begin = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.start())
    return text[begin : end if end >= 0 else len(text)].strip()[:_SHOWN_CHARS]
