"""The folder of one tuning job: its definition, its trials, its state, and the lock of its searcher.

$HERRINGBONE_HOME/tunings/NAME/
    tuning.json       the definition, the request of the trials; secrets masked; never changes
    trials.jsonl      append-only: a line when a trial is proposed, one when it is over
    state.json        the status, and the searcher's process
    stop              an empty file: somebody asked to stop the search
    lock              locked while a searcher runs: one at a time
    searcher.log      what the searcher printed
    code/             the code as it was at `fit`
    checkpoints/      of trials that later ones continue
    optuna.journal    a copy of the trials for Optuna's dashboard, where Optuna searches

A searcher may be killed between any two lines. A trial is written before its job is submitted, under a name that
follows from the trial's number. So the next searcher knows every job that may exist, and asks the index for it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from herringbone.plan.plan import parse_plan
from herringbone.plan.request import JobRequest, parse_request, request_of
from herringbone.records.index import COMPLETED, FAILED, IN_PROGRESS, STOPPED, TERMINAL
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.trials import Proposal, Trial, TrialState
from herringbone_contract.errors import HerringboneError, InputError, JobNameError
from herringbone_contract.files import sync, try_locked, write_whole

VERSION = 1
# A look of another process holds the lock for microseconds.
_LOCK_SECONDS = 2.0
# A searcher says so often that it lives, and submits a job in less than the second time.
_BEAT_SECONDS, _SILENT_SECONDS = 10.0, 600.0
_SHOWN_CHARS = 1_000
_STATES = {COMPLETED: TrialState.COMPLETED, FAILED: TrialState.FAILED, STOPPED: TrialState.STOPPED}


class TuningRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a tuning job that never changes.

    `request` is that of its trials without tuned values; earlier releases stored a `plan`. Secrets are masked in it and
    in the static hyperparameters of `definition`. `no_links_below` is a folder in which the addresses of trials must
    not lead through a link.
    """

    definition: TuningDefinition
    backend: str
    created: float
    request: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    tags: tuple[dict[str, str], ...] = ()
    no_links_below: str | None = None
    version: int = VERSION

    @property
    def asked(self) -> JobRequest:
        """The request of its trials. Raises `InputError` for one of another release."""
        return parse_request(self.request) if self.plan is None else request_of(parse_plan(self.plan))


class TuningState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a tuning job that changes: `status` has SageMaker's words, `reason` says why it ended early.

    `searcher` is the identity of the last process that searched, `place` says where its id means something.
    """

    status: str = IN_PROGRESS
    reason: str | None = None
    ended: float | None = None
    searcher: str | None = None
    place: str | None = None

    @property
    def done(self) -> bool:
        return self.status in TERMINAL


class TrialRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial as it is stored: the proposal, its job, and the result once the job is over.

    `status` is that of the job. Times are seconds since 1970. `early_stopped`: the search stopped it, nobody else.
    """

    number: int
    job: str
    values: dict[str, Any]
    proposed: float
    resource: int | None = None
    resumes: int | None = None
    status: str = IN_PROGRESS
    objective: float | None = None
    curve: tuple[float, ...] = ()
    # None: the trial started when it was proposed. SageMaker reports this time.
    started: float | None = None
    ended: float | None = None
    failure: str | None = None
    early_stopped: bool = False

    @property
    def done(self) -> bool:
        return self.status in TERMINAL

    @property
    def proposal(self) -> Proposal:
        return Proposal(self.number, self.values, self.resource, self.resumes)

    def trial(self) -> Trial:
        """Return the trial as strategies see it."""
        state = _STATES.get(self.status, TrialState.IN_PROGRESS)
        return Trial(self.proposal, self.job, state, self.objective, self.curve)


class _Proposed(msgspec.Struct, tag_field="kind", tag="proposed", omit_defaults=True):
    number: int
    values: dict[str, Any]
    job: str
    t: float
    resource: int | None = None
    resumes: int | None = None

    def record(self) -> TrialRecord:
        members = msgspec.structs.asdict(self)
        return TrialRecord(proposed=members.pop("t"), **members)


class _Ended(msgspec.Struct, tag_field="kind", tag="ended", omit_defaults=True):
    number: int
    status: str
    t: float
    # JSON has no NaN, and msgspec would write null.
    objective: float | str | None = None
    curve: tuple[float | str, ...] = ()
    failure: str | None = None
    early_stopped: bool = False


_LINE = msgspec.json.Decoder(_Proposed | _Ended)


class TuningStore:
    """The folder of one tuning job.

    >>> TuningStore(find_home().tuning("digits")).trials()[0].objective        # doctest: +SKIP
    0.93
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._beaten = -math.inf

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def exists(self) -> bool:
        return (self.path / "tuning.json").is_file()

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def log(self) -> Path:
        return self.path / "searcher.log"

    def checkpoints(self, job: str) -> Path:
        """Return the folder in which a trial's job keeps its checkpoints, for the trial that continues it."""
        return self.path / "checkpoints" / job

    @contextlib.contextmanager
    def creating(self) -> Iterator[Path]:
        """Give the body a folder to fill, which gets the tuning job's name if the body raises no error.

        Raises `JobNameError` when the name is taken, also by a process that takes it at this moment.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.name}-{os.urandom(6).hex()}.partial")
        partial.mkdir(mode=0o700)
        try:
            yield partial
            try:
                # Not `replace`: an empty folder of that name is replaced by both, a full one by neither.
                partial.rename(self.path)
                sync(self.path.parent)
            except OSError:
                raise JobNameError(
                    f"tuning job name {self.name!r} is taken; choose another, or leave it out to get a generated one"
                ) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def record(self) -> TuningRecord:
        """Return what never changes. Raises `InputError` for a file of another release."""
        path = self.path / "tuning.json"
        try:
            return msgspec.convert(json.loads(path.read_bytes()), TuningRecord)
        except (OSError, ValueError) as error:
            raise InputError(
                f"tuning job {self.name}: {path} cannot be read: {error}; if another release of Herringbone wrote it, "
                "use that one"
            ) from error

    def state(self) -> TuningState:
        """Return the state; the first one where there is no file, or one that was not written by us."""
        try:
            return msgspec.json.decode((self.path / "state.json").read_bytes(), type=TuningState)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return TuningState()

    def set_state(self, state: TuningState) -> None:
        """Replace the state. Only the searcher, which holds the lock, does so."""
        write_whole(self.path / "state.json", msgspec.json.encode(state), synced=True)

    def ask_to_stop(self) -> None:
        """Leave the request to stop, which every searcher sees, also one that is started later."""
        (self.path / "stop").touch()

    @property
    def stop_asked(self) -> bool:
        return (self.path / "stop").exists()

    def trials(self) -> list[TrialRecord]:
        """Return the trials in the order of their numbers; a last line that is not complete does not count."""
        try:
            return read_trials((self.path / "trials.jsonl").read_bytes())
        except FileNotFoundError:
            return []

    def add_proposal(self, proposal: Proposal, job: str) -> TrialRecord:
        """Write a trial down before its job is submitted."""
        line = _Proposed(proposal.number, proposal.values, job, time.time(), proposal.resource, proposal.resumes)
        self._append(line)
        return line.record()

    def add_end(self, record: TrialRecord) -> None:
        """Write the result of a trial that is over."""
        self._append(
            _Ended(
                record.number,
                record.status,
                record.ended or time.time(),
                None if record.objective is None else _json_number(record.objective),
                tuple(_json_number(value) for value in record.curve),
                record.failure,
                record.early_stopped,
            )
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the searcher's lock; gives False where another process holds it."""
        lock = try_locked(self.path / "lock", seconds=_LOCK_SECONDS)
        with lock or contextlib.nullcontext():
            yield lock is not None

    @property
    def is_searched(self) -> bool:
        """True while a searcher runs."""
        path = self.path / "lock"
        # A look must not make the file, whose time says when a searcher lived.
        with contextlib.suppress(OSError):
            if path.exists():
                with try_locked(path) or contextlib.nullcontext() as lock:
                    return lock is None
        return False

    def beat(self) -> None:
        """Say that the searcher lives, to machines that may not see its lock: the lock's file gets a new time."""
        now = time.monotonic()
        if now - self._beaten >= _BEAT_SECONDS:
            self._beaten = now
            with contextlib.suppress(OSError):
                os.utime(self.path / "lock")

    @property
    def beats(self) -> bool:
        """True if a searcher, here or elsewhere, has lately said that it lives."""
        try:
            return time.time() - (self.path / "lock").stat().st_mtime < _SILENT_SECONDS
        except OSError:
            return False

    def last_words(self) -> str:
        """Return the last line of the searcher's log, where an error says its reason; "" without one."""
        try:
            lines = self.log.read_text(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip()[:_SHOWN_CHARS] for line in reversed(lines) if line.strip()), "")

    def _append(self, line: _Proposed | _Ended) -> None:
        path = self.path / "trials.jsonl"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            # What a killed searcher has left of a line goes: the next line must begin at the start of one.
            whole = size
            while whole and os.pread(descriptor, 1, whole - 1) != b"\n":
                whole -= 1
            if whole < size:
                os.ftruncate(descriptor, whole)
            content = msgspec.json.encode(line) + b"\n"
            if os.pwrite(descriptor, content, whole) != len(content):
                os.ftruncate(descriptor, whole)
                raise OSError("the disk is full")
            os.fsync(descriptor)
            if not size:
                # The name of the new file, too.
                sync(self.path)
        except OSError as error:
            raise HerringboneError(
                f"tuning job {self.name}: {path} cannot be written: {error.strerror or error}; free space on its disk, "
                f"then HyperparameterTuner.attach({self.name!r}) goes on"
            ) from error
        finally:
            os.close(descriptor)


def read_trials(content: bytes) -> list[TrialRecord]:
    """Return the trials that the lines of `trials.jsonl` describe. Pure.

    >>> read_trials(b'{"kind":"proposed","number":0,"values":{"lr":0.1},"job":"a-001","t":1.0}')
    []

    That line has no end, so its writer was killed before the job was submitted.
    """
    records: dict[int, TrialRecord] = {}
    for text in content.split(b"\n")[:-1]:
        try:
            line = _LINE.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # A disk may lose what was not synced.
            continue
        if isinstance(line, _Proposed):
            records.setdefault(line.number, line.record())
        elif (record := records.get(line.number)) is not None and not record.done:
            records[line.number] = msgspec.structs.replace(
                record,
                status=line.status,
                objective=None if line.objective is None else float(line.objective),
                curve=tuple(float(value) for value in line.curve),
                ended=line.t,
                failure=line.failure,
                early_stopped=line.early_stopped,
            )
    # Numbers without gaps: a trial after a lost line would be proposed again.
    return [records[number] for number in itertools.takewhile(records.__contains__, itertools.count())]


def encode_record(record: TuningRecord) -> bytes:
    """Return the content of `tuning.json`. Pure.

    msgspec would write null for an infinite hyperparameter, and for the objective of a parent's trial that diverged.
    """
    return json.dumps(msgspec.to_builtins(record)).encode()


def _json_number(value: float) -> float | str:
    # JSON has no NaN, and msgspec would write null.
    return value if value - value == 0 else str(value)
