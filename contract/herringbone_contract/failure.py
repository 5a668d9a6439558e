"""The failure of a job: one record that the supervisor writes and the client reads.

The record is rendered in 1,024 characters for `/opt/ml/output/failure`, because the service keeps no more. It is kept
whole in `/opt/ml/output/failure.json`.
"""

from __future__ import annotations

import json
import signal
from typing import NamedTuple

from herringbone_contract.constants import MAX_FAILURE_CHARS
from herringbone_contract.faults.bad_steps import BadSteps
from herringbone_contract.faults.policies import DRAIN

# Of a process that a crash has ended.
CRASH_CODES = frozenset(
    128 + number for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
)
# Of a supervisor that was asked to stop: SageMaker's code for it.
STOPPED_CODE = 128 + signal.SIGTERM
# The client recognises a lost host by these words.
_LOST = "lost contact with "
# The client recognises a host that lost a process of ours by these words.
_LOST_PROCESS = "lost a process of "


class Frame(NamedTuple):
    """One frame of a traceback: file, line, function and source."""

    file: str
    line: int
    function: str
    source: str = ""

    def render(self) -> str:
        """Return the frame as one line."""
        return f"{self.file}:{self.line} in {self.function}" + (f": {self.source}" if self.source else "")


class Failure(NamedTuple):
    """The first thing that went wrong.

    `exit_code` follows the shell: 1-125 is the program's own, 128 + n means signal n. It is 0 when no program ended,
    for example because a service has no hosts to give. `exception` is the class name, `message` its text; both are
    empty when the process died without an exception. `frames` are the user's own, outermost first. `log_tail` are the
    rank's last lines. `fault` is the kind of fault (`faults.policies`) for which a watcher ended the job, or "",
    and `bad` are the steps of a wrong loss.
    """

    host: str | None = None
    rank: int | None = None
    exit_code: int = 1
    exception: str = ""
    message: str = ""
    frames: tuple[Frame, ...] = ()
    log_tail: tuple[str, ...] = ()
    fault: str = ""
    bad: BadSteps | None = None

    @property
    def where(self) -> str:
        """The place of the failure: "rank 1 on algo-1", "algo-2" or "the job"."""
        if self.rank is not None:
            return f"rank {self.rank} on {self.host}"
        return self.host or "the job"

    @property
    def lost_host(self) -> str | None:
        """The host that the others lost contact with; None for any other failure."""
        # The message of a rank is its script's.
        if self.rank is not None or self.host is None or not self.message.startswith(_LOST + self.host):
            return None
        # A message about `algo-10` also begins with `algo-1`, so look at the character after the name.
        return self.host if self.message[len(_LOST + self.host) :][:1] in ("", ":", " ") else None

    @property
    def interrupted_host(self) -> str | None:
        """The host that was lost, or that lost a process of ours; None when the script may be the reason."""
        own = self.rank is None and self.host is not None
        if own and self.message.startswith(f"{_LOST_PROCESS}{self.host}: "):
            return self.host
        return self.lost_host

    @property
    def what(self) -> str:
        """The event in one line, the exception first."""
        # A fault that a watcher found is no process's end.
        death = describe_exit(self.exit_code) if self.exit_code and not self.fault else ""
        if not self.exception:
            return ": ".join(part for part in (death, self.message) if part)
        event = f"{self.exception}: {self.message}" if self.message else self.exception
        return f"{event} ({death})" if death else event

    @property
    def advice(self) -> str:
        """A remedy for a failure of the service itself; an empty text for any other failure."""
        return _ADVICE.get(self.exception, "")

    @property
    def head(self) -> str:
        """The place and the event, in one line unless the message has several."""
        return _without_controls(f"{self.where}: {self.what}")

    @property
    def brief(self) -> str:
        """The head, and the innermost of the user's frames: enough next to a log that shows the traceback."""
        return "\n".join([self.head, *(_without_controls(f"  at {frame.render()}") for frame in self.frames[-1:])])

    def render(self, limit: int | None = None) -> str:
        """Return the failure as text: a head line with place and event, then frames, then the log tail.

        Control characters of the script, such as colours, become escapes that can be read, except for line breaks and
        tabs. A `limit` (characters) drops outer frames and old log lines first; the head line always stays.
        """
        head = self.head
        frames = [_without_controls(f"  at {frame.render()}") for frame in self.frames]
        tail = [_without_controls(f"  | {_last_state(line)}") for line in self.log_tail]
        text = "\n".join([head, *frames, *tail])
        if limit is None or len(text) <= limit:
            return text
        head = head if len(head) <= limit else head[: limit - 3] + "..."
        lines = [*frames, *tail]
        # The innermost frame is worth most, then the frames around it, then the newest log lines.
        by_worth = [*reversed(range(len(frames))), *reversed(range(len(frames), len(lines)))]
        room = limit - len(head)
        kept_indices = []
        for index in by_worth:
            if (cost := len(lines[index]) + 1) <= room:
                room -= cost
                kept_indices.append(index)
        return "\n".join([head, *(lines[index] for index in sorted(kept_indices))])

    def to_json(self) -> str:
        """Return the record as JSON; `parse_failure` reads it back."""
        return json.dumps({**self._asdict(), "frames": [frame._asdict() for frame in self.frames]})


def lost_contact(host: str, silence: str = "") -> Failure:
    """Return the failure of a host whose connection ended, or that was silent for as long as `silence` says.

    >>> lost_contact("algo-2").render(), lost_contact("algo-2", "silent for 3 heartbeats of 5 s").lost_host
    ('algo-2: exit code 1: lost contact with algo-2', 'algo-2')
    """
    return Failure(host=host, exit_code=1, message=_LOST + host + (f" ({silence})" if silence else ""))


def lost_process(host: str, event: str, code: int, last_lines: tuple[str, ...] = ()) -> Failure:
    """Return the failure of a host on which somebody killed a process of ours that the ranks needed.

    >>> lost_process("algo-1", "mpirun ended before its ranks did", 137).render()
    'algo-1: exit code 137, killed by SIGKILL: lost a process of algo-1: mpirun ended before its ranks did'
    """
    return Failure(host=host, exit_code=code, message=f"{_LOST_PROCESS}{host}: {event}", log_tail=last_lines)


def taken_away(host: str, notice: str) -> Failure:
    """Return the failure of a job that ended because the platform takes a host of it away.

    >>> taken_away("algo-1", "/run/drain exists").what
    'the platform takes away algo-1: /run/drain exists'
    """
    message = f"the platform takes away {host}: {notice}"
    return Failure(host=host, exit_code=STOPPED_CODE, message=message, fault=DRAIN)


# Remedies for the service's own failures, by its words for them; no script causes these.
_ADVICE = {
    "CapacityError": "no such hosts are free: try again later, another instance_type or region, or keep hosts warm "
    "between jobs with keep_alive_period_in_seconds",
    "ResourceLimitExceeded": "the account may use no more hosts of this type: ask for a higher quota (Service Quotas, "
    "Amazon SageMaker, 'for training job usage'), or take another instance_type",
    "InternalServerError": "the service failed, not the script: run it again; max_retry_attempts has the service do so",
}


def _without_controls(text: str) -> str:
    if text.isprintable():
        return text
    # Imported here: a job that does not fail does not load it.
    from herringbone_contract.masking import printable

    return printable(text, keep="\n\t")


def _last_state(line: str) -> str:
    """Return what a terminal shows of a line at its end: a progress bar writes all of its states into one line.

    >>> _last_state("10 %\\r20 %\\r")
    '20 %'
    """
    return line.rstrip("\r").rpartition("\r")[2]


def summary(failure: Failure) -> str:
    """Return the text for `/opt/ml/output/failure`."""
    return failure.render(MAX_FAILURE_CHARS)


def describe_exit(code: int) -> str:
    """Describe an exit code in words.

    >>> describe_exit(3), describe_exit(137)
    ('exit code 3', 'exit code 137, killed by SIGKILL')
    """
    # As a shell counts: 128 and the signal's number.
    if code > 128:
        try:
            return f"exit code {code}, killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"exit code {code}"


def exit_code_of(returncode: int) -> int:
    """Turn `subprocess`'s return code (negative for a signal) into the shell's."""
    return 128 - returncode if returncode < 0 else returncode
