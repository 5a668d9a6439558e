"""Check that an image can run jobs, by running trial jobs in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from herringbone.engine.client import Engine
from herringbone.images.build import described
from herringbone.images.labels import CONTRACT, Label
from herringbone.images.trial import Outcome, Setting, trial
from herringbone_contract.constants import Key
from herringbone_contract.errors import EngineError

# A user id that is in no image's /etc/passwd.
_STRANGER = "47110:47110"
_ROOT = "0:0"
# From the strictest setting that an image may support to the easiest.
_SETTINGS = (Setting(_STRANGER, read_only=True), Setting(_STRANGER, read_only=False), Setting(_ROOT, read_only=False))
_MPI = ((Key.MPI_ENABLED, True), (Key.MPI_PROCESSES_PER_HOST, 2), (Key.MPI_CUSTOM_OPTIONS, ""))
# These three match the scripts in `trials`.
_FAILURE_CODE = 7
_STOP_READY = "the trial runs"
_JOB_SECONDS, _STOP_SECONDS = 120.0, 15.0


class Verdict(Enum):
    """`WARNING`: jobs run, with a limitation. `FAILED`: some jobs do not run as they should."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    subject: str
    verdict: Verdict
    detail: str


def check(engine: Engine, image: str) -> Iterator[Finding]:
    """Run trials of an image one after the other, and yield the findings; stop if the first trial fails.

    >>> for finding in check(engine, "herringbone/pytorch:2.13.0-cpu-7c5b"):     # doctest: +SKIP
    ...     print(finding.subject, finding.verdict.value, finding.detail)

    An image with our contract label must pass all trials. Any other image must run a job as any user, and must report a
    failed job as failed; its other findings are warnings. Raises `ImageError` for an image that the engine lacks.
    """
    description = described(engine, image)
    ours = (description["Config"].get("Labels") or {}).get(Label.CONTRACT) == CONTRACT
    severity = Verdict.FAILED if ours else Verdict.WARNING
    yield Finding(
        "contract",
        Verdict.OK if ours else Verdict.WARNING,
        "1" if ours else f"no label {Label.CONTRACT}: a job's environment shows in `docker inspect`",
    )
    outcomes = {}
    for setting in _SETTINGS:
        outcomes[setting] = _run(engine, image, "contents", setting)
        if outcomes[setting].code == 0:
            break
    yield from _runs(outcomes, severity)
    # `setting` is now the strictest one in which a job ran. All later trials use it.
    facts = _facts(outcomes[setting])
    if facts is None:
        return
    yield from _content(engine, image, facts, severity)
    yield _failure(_run(engine, image, "failure", setting), severity)
    yield _stop(engine, image, setting, severity)
    if facts["mpi"]:
        yield _mpi(_run(engine, image, "ranks", replace(setting, hyperparameters=_MPI)), severity)


def _runs(outcomes: Mapping[Setting, Outcome], severity: Verdict) -> Iterator[Finding]:
    """Judge a job that ran in easier and easier settings until it succeeded. Pure."""
    (strictest, strictest_outcome), (easiest, easiest_outcome) = (
        next(iter(outcomes.items())),
        list(outcomes.items())[-1],
    )
    facts = _facts(easiest_outcome)
    if facts is None:
        yield Finding("a job", Verdict.FAILED, _ending(easiest_outcome))
        return
    yield Finding("a job", Verdict.OK, f"Python {facts['python']}, by the command train")
    if easiest.user == strictest.user:
        yield Finding("any user", Verdict.OK, f"uid {facts['uid']}")
    else:
        yield Finding("any user", Verdict.FAILED, strictest_outcome.tail)
    if easiest.read_only:
        yield Finding("read-only root", Verdict.OK, "only /opt/ml and /tmp are written")
    else:
        yield Finding("read-only root", severity, strictest_outcome.tail)


def _content(engine: Engine, image: str, facts: Mapping[str, Any], severity: Verdict) -> Iterator[Finding]:
    framework = facts["framework"]
    yield (
        Finding("framework", Verdict.OK, f"{framework['name']} {framework['version']}")
        if framework
        else Finding("framework", Verdict.WARNING, "neither torch, tensorflow nor mxnet")
    )
    if facts["mpi"]:
        yield Finding("MPI", Verdict.OK, facts["mpi"])
    else:
        yield Finding("MPI", Verdict.WARNING, "no mpirun: jobs with `mpi` will not start")
    # A trial of its own, because the first one may have run as a user who cannot read everything.
    # Root sees every file of the image.
    contents = _facts(_run(engine, image, "contents", Setting(_ROOT, read_only=False)))
    if contents is None:
        return
    keys = contents["private_keys"]
    yield Finding("private keys", severity if keys else Verdict.OK, ", ".join(keys) or "none")
    sshd = [contents["sshd"]] if contents["sshd"] else []
    unneeded = [*contents["tools"], *sshd, *contents["caches"]]
    detail = f"not needed: {', '.join(unneeded)}" if unneeded else "no compiler, no sshd, no package cache"
    yield Finding("ballast", Verdict.WARNING if unneeded else Verdict.OK, detail)


def _failure(outcome: Outcome, severity: Verdict) -> Finding:
    """Judge a job that failed. Pure.

    >>> _failure(Outcome(7, "", {"output/failure": b"exit code 7"}), Verdict.WARNING).verdict
    <Verdict.OK: 'ok'>
    """
    failure = outcome.files.get("output/failure", b"").decode(errors="replace")
    if outcome.code in (0, None):
        return Finding("failure", Verdict.FAILED, f"a script that exits with 7 passes for: {_ending(outcome)}")
    if not failure:
        return Finding("failure", severity, "a failed job writes no /opt/ml/output/failure")
    if outcome.code != _FAILURE_CODE:
        return Finding("failure", severity, f"exit code {_FAILURE_CODE} becomes {outcome.code}")
    return Finding("failure", Verdict.OK, f"exit code {outcome.code}, reported in {len(failure)} characters")


def _stop(engine: Engine, image: str, setting: Setting, severity: Verdict) -> Finding:
    with trial(engine, image, "stop", setting) as running:
        if not running.printed(_STOP_READY, seconds=_JOB_SECONDS):
            return Finding("stop", severity, _ending(running.outcome(seconds=0)))
        # The service stops a job in the same way: SIGTERM to the container's first process.
        running.signal("SIGTERM")
        outcome = running.outcome(seconds=_STOP_SECONDS)
    # The file decides first: a container may end at SIGTERM although its script never received the signal.
    if "model/stopped" not in outcome.files:
        return Finding("stop", severity, "SIGTERM does not reach the script, which cannot save its state")
    if outcome.code is None:
        return Finding("stop", severity, f"still runs {_STOP_SECONDS:.0f} s after SIGTERM")
    return Finding("stop", Verdict.OK, "SIGTERM reaches the script")


def _mpi(outcome: Outcome, severity: Verdict) -> Finding:
    # Two processes that both call themselves rank 0 would be two jobs of one rank.
    ranks = {rank for rank in (0, 1) if f"trial rank {rank}" in outcome.output}
    if outcome.code == 0 and ranks == {0, 1}:
        return Finding("MPI job", Verdict.OK, "two ranks")
    return Finding("MPI job", severity, _ending(outcome))


def _run(engine: Engine, image: str, script: str, setting: Setting) -> Outcome:
    try:
        with trial(engine, image, script, setting) as running:
            return running.outcome(seconds=_JOB_SECONDS)
    except EngineError as error:
        # The container runtime's message for a command that the image does not have.
        if '"train": executable file not found' in str(error):
            return Outcome(None, "", {}, "the image has no program `train`: install Herringbone in it")
        return Outcome(None, "", {}, str(error))


def _facts(outcome: Outcome) -> dict[str, Any] | None:
    if outcome.code != 0 or "model/facts.json" not in outcome.files:
        return None
    facts: dict[str, Any] = json.loads(outcome.files["model/facts.json"])
    return facts


def _ending(outcome: Outcome) -> str:
    """Return the end of a trial in words: the refusal, or the exit code and the last lines."""
    if outcome.refusal:
        return outcome.refusal
    code = f"after {_JOB_SECONDS:.0f} s it had not ended" if outcome.code is None else f"exit code {outcome.code}"
    return f"{code}: {outcome.tail}" if outcome.tail else code
