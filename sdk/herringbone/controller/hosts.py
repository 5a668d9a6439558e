"""The interface between the controller and a job's hosts, and the part of a host that all kinds share.

A site is all hosts of one job, which are of one kind: processes of this machine (`processes`), containers of an engine
(`containers.site`) or steps of a Slurm job (`slurm_steps`). The controller knows sites and hosts only by this module.
"""

from __future__ import annotations

import enum
import os
import signal
import time

from herringbone.controller.log_files import LogFile
from herringbone.controller.silence import Silence
from herringbone.system.processes import is_stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from herringbone.controller.retry import Attempt
    from herringbone.protocols.controller_config import ControllerConfig, HostConfig

_READ_BYTES = 1 << 20
# Begins a line of MLPerf's log; `herringbone_contract.events.mllog.PREFIX`, without its module.
_MLLOG_MARK = b":::MLLOG "


class Restart(enum.Enum):
    """The outcome of a site's attempt to restart the job."""

    HERE = "this controller starts the hosts again"
    ELSEWHERE = "another controller will start them"
    NONE = "the job is over"


class Conclusion(enum.Enum):
    """The next step of the controller after an attempt."""

    OVER = "the job is over, and did not fail"
    FAILED = "the job failed, or another controller goes on"
    RESTART = "this controller starts the hosts again"


class Site:
    """The hosts of one job. The defaults suit hosts on one machine, whose site has nothing of its own to remove."""

    hosts: Sequence[Host]
    # The attempts of this job that failed before this one.
    failed_attempts: Sequence[Attempt] = ()
    # The seconds that earlier controllers of this job have held its hosts.
    spent: float = 0.0
    # Children of the controller that belong to no host: no orphans.
    spared: frozenset[int] = frozenset()
    # This attempt, if its hosts were asked to end for another number of them; None while nobody wants one.
    planned: Attempt | None = None

    @property
    def due(self) -> float:
        """The time, as `time.monotonic()` has it, at which `act` has something to do."""
        return float("inf")

    def act(self) -> None:
        """Do what is due next to the hosts that run."""

    @property
    def machines(self) -> Mapping[str, str]:
        """The machine of each host, by host name; empty when all hosts are on one machine."""
        return {}

    def time_limit(self, config: ControllerConfig) -> tuple[float, str, str]:
        """Return the seconds until the limit that comes first, the option that sets it, and words for the log.

        >>> budget = {"seconds": 90, "text": "$5 are spent"}
        >>> Site().time_limit({"max_run": 100, "spent": 20, "warning": 0, "budget": budget})
        (70.0, 'max_cost', '$5 are spent')
        """
        budget, spent = config["budget"], config["spent"]
        soon = f" in {config['warning']:g} s" if config["warning"] else ""
        limits = [(float(config["max_run"] - spent), "max_run", f"max_run of {config['max_run']:g} s is over")]
        if budget is not None and budget["seconds"] is not None:
            limits.append((max(0.0, budget["seconds"] - self.spent - spent), "max_cost", budget["text"]))
        seconds, option, text = min(limits)
        return seconds - config["warning"], option, text + soon

    def start(self) -> None:
        """Start the hosts. Raises `OSError`."""
        raise NotImplementedError

    def load(self) -> None:
        """Import what this kind of host needs later: the package may be upgraded or removed while the job runs."""

    def endings(self) -> Iterator[tuple[Host, int]]:
        """Return the hosts that have ended since the last call, each with its exit code, as the shell counts."""
        for host in self.hosts:
            if (code := host.take_ending()) is not None:
                yield host, code

    def kill_orphans(self) -> None:
        """Kill the processes that ended hosts left behind."""

    def on_host_failure(self) -> None:
        """Make sure that the other hosts can learn of a failed host: unpause them, or mark them as lost."""

    def collect(self) -> None:
        """Bring what the ended hosts wrote to their base folders, and start to remove what no attempt needs."""

    def attempt_columns(self, failed: Sequence[Attempt]) -> dict[str, Any]:  # noqa: ARG002
        """Return the columns of the record in which another controller finds the failed attempts."""
        return {}

    def restart(self, failed: Sequence[Attempt]) -> Restart:
        """Prepare `hosts` for another start, or have another controller start them.

        Raises `HerringboneError` or `OSError` where that cannot be done.
        """
        raise NotImplementedError

    def is_interrupted(self, *, stopped: bool) -> bool:  # noqa: ARG002
        """Report that the hosts ended because the platform takes them away; `stopped`: they were told to stop."""
        return False

    def requeue(self) -> bool:
        """Have another controller run an interrupted job again; return False where the job is over."""
        return False

    def remove(self) -> None:
        """Remove what the site still has, and return when nothing is left."""

    def abandon(self) -> None:
        """Kill and remove everything at once; some hosts may not have started."""
        for host in self.hosts:
            host.signal(signal.SIGKILL)
        self.kill_orphans()


def next_hosts(
    configs: Sequence[HostConfig], hosts: Sequence[Host], failed: Sequence[Attempt], logs: str
) -> list[tuple[HostConfig, LogFile]]:
    """Return the hosts of the next attempt, each with its log: as many as now, or the number that was asked for."""
    now = {host.name: host.log for host in hosts}
    nexts = configs[: failed[-1].next_hosts or len(hosts)]
    for name in now.keys() - {config["name"] for config in nexts}:
        now[name].close(time.time())
    return [(config, now.get(config["name"]) or LogFile(f"{logs}/{config['name']}.log")) for config in nexts]


class Host:
    """One supervisor.

    `exit_code` is the shell's (128 + n for signal n), None while the supervisor runs. `output` is the descriptor of its
    output, None after the end of the output. `ending` is a descriptor that becomes readable when the site knows more
    of the host's end, None when SIGCHLD reports the end. `cause` says why the host ended, when the exit code alone
    does not. `cancelled` means that the platform ended the host, for its own reasons or because somebody else asked.
    """

    # The supervisor's process on this machine, 0 where it has none.
    pid = 0

    def __init__(self, config: HostConfig, log: LogFile) -> None:
        self.name = config["name"]
        self.base = config["base"]
        self.log = log
        self.exit_code: int | None = None
        # The order of ends decides whose failure came first; see `verdict`.
        self.ended_at = 0.0
        self.output: int | None = None
        self.ending: int | None = None
        self.cause = ""
        self.cancelled = False
        # The host ended because its machine, its node or its engine went away.
        self.lost = False
        # The byte of the log file at which this attempt begins.
        self.log_begins = 0
        # The descriptor through which requests reach the supervisor, None while there is none; it never blocks.
        self.line: int | None = None
        # How long nothing has come from the host.
        self.silence = Silence()
        # The end of a request that a full socket has cut.
        self._untold = b""
        # The host has printed a line of MLPerf's log.
        self.has_mllog = False
        # The last bytes of the output: the mark may be cut by the end of a chunk.
        self._end = b""

    @property
    def paused(self) -> str:
        """The supervisor in words, if it is a process of this machine that somebody has stopped; else ""."""
        if not self.pid or not is_stopped(str(self.pid)):
            return ""
        return f"{self.name}: its supervisor (process {self.pid}) is stopped; `kill -CONT {self.pid}` lets it go on"

    @property
    def standstill(self) -> str:
        """Stopped processes of this host, in words; "" while everything goes on."""
        if paused := self.paused:
            return paused
        if self.silence.was_noticed:
            quiet = f"nothing has come from its supervisor for {self.silence.seconds:g} s"
            return f"{self.name}: {quiet}; is it stopped, or its container paused?"
        return f"{self.name}: {'; '.join(self.log.stopped)}" if self.log.stopped else ""

    @property
    def over(self) -> bool:
        """Report whether the supervisor has ended and all of its output is in the log file."""
        return self.exit_code is not None and self.output is None

    def take_ending(self) -> int | None:
        """Return the exit code once the supervisor has ended, None before; where the site asks each host for it."""
        raise NotImplementedError

    def signal(self, number: int) -> None:
        """Signal the supervisor; a supervisor that has ended is no error."""
        raise NotImplementedError

    def tell(self, request: bytes) -> bool:
        """Send the supervisor a line with a request; return False when it cannot take one."""
        if self.exit_code is not None or self.line is None:
            return False
        begin = len(self._untold)
        line = self._untold + request
        try:
            written = os.write(self.line, line)
        except OSError:
            # A supervisor that is stopped, or so far behind that the pipe is full; or one that has just ended.
            return False
        # A pipe takes a request as a whole or not at all. A socket may cut it, and then needs the rest before the next.
        if written > begin:
            self._untold = line[written:]
            return True
        # Nothing of this request was sent, so the caller may send it again.
        self._untold = self._untold[written:]
        return False

    def clear(self) -> None:
        """Remove what an earlier attempt wrote, except for its checkpoints.

        Links that the script left are removed, never their targets. Raises `OSError` for what cannot be removed.
        """
        from herringbone_contract import safe_tree
        from herringbone_contract.paths import INSIDE

        with safe_tree.folder(self.base) as base:
            if safe_tree.make_folder(base, str(INSIDE.output)):
                self.log.say(f"[{self.name}] the script had replaced {INSIDE.output} by a link or a file", time.time())
            safe_tree.remove(base, str(INSIDE.model))
            safe_tree.make_folder(base, str(INSIDE.model))
            with safe_tree.folder(base, str(INSIDE.output)) as output:
                # An old failure record would be taken for the new attempt's.
                for path in (INSIDE.failure, INSIDE.failure_record, INSIDE.success, INSIDE.output_data):
                    safe_tree.remove(output, path.name)
                safe_tree.make_folder(output, INSIDE.output_data.name)

    def drain(self) -> None:
        """Read the output once and write it to the log file; close the output at its end.

        One read per call: a host that writes without pause must not keep the loop from the other hosts and deadlines.
        """
        if self.output is None:
            return
        try:
            chunk = os.read(self.output, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            # A broken connection to the engine is the end of the output, as end-of-file is.
            chunk = b""
        # An empty read is end-of-file: every process that held the write end has ended or closed it.
        if chunk:
            text, stopped = self._text(chunk), self.log.stopped
            self.log.feed(text, time.time())
            if self.log.stopped != stopped:
                names = "; ".join(self.log.stopped)
                self.log.say(f"[{self.name}] {f'stands still: {names}' if names else 'goes on'}", time.time())
            if self.silence.hear(time.monotonic(), self.log.heartbeat):
                self.log.say(f"[{self.name}] is heard again", time.time())
            if not self.has_mllog:
                self.has_mllog = _MLLOG_MARK in text or _MLLOG_MARK in self._end + text[: len(_MLLOG_MARK)]
                self._end = (self._end + text)[-len(_MLLOG_MARK) :] if len(text) < len(_MLLOG_MARK) else text[-8:]
        else:
            self.close_output()

    def close_output(self) -> None:
        """Stop reading the output, even if another process still holds the write end."""
        if self.output is not None:
            # `over` becomes true with this, so it happens only after the last chunk is in the log.
            os.close(self.output)
            self.output = None

    def close_line(self) -> None:
        """Close the line of a supervisor that has ended, or is to end."""
        if self.line is not None:
            os.close(self.line)
            self.line = None

    def _text(self, chunk: bytes) -> bytes:
        """Return the text of a chunk, without the framing of the transport."""
        return chunk
