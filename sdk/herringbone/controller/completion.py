"""The hosts that a controller has at the end of an attempt: read, send and remove what they left."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.controller.attempt_end import EndedHosts, NotSentError, last_columns
from herringbone.controller.attempts import newest_file, read_log
from herringbone.controller.hosts import Host, Restart
from herringbone.controller.log_files import say
from herringbone.controller.record import job_events, record_of
from herringbone.controller.resize import rewrite_hosts
from herringbone.controller.retry import (
    Policies,
    announced,
    describe_attempts,
    num_failed,
    num_replanned,
    with_layout,
    with_progress,
)
from herringbone.controller.verdict import HostEnd, Verdict, judge
from herringbone.protocols.controller_config import ControllerConfig, ReplanConfig
from herringbone.records.checkpoints import settle_links
from herringbone.records.index import COMPLETED, INTERRUPTED, LIMITS, RESTARTING, STOPPED, UPLOADING
from herringbone.records.logs import STAMP_CHARS
from herringbone.slots.release import free
from herringbone_contract.constants import DEFAULT_BASE, MAX_FAILURE_CHARS, MAX_RECORD_BYTES
from herringbone_contract.errors import ContractError
from herringbone_contract.failure import Failure
from herringbone_contract.failure_text import parse_failure, words_of
from herringbone_contract.masking import printable
from herringbone_contract.paths import INSIDE, Paths
from herringbone_contract.safe_tree import read_file, rewrite

if TYPE_CHECKING:
    from herringbone.controller.artifacts import Bases
    from herringbone.controller.helpers import S3Process
    from herringbone.controller.hosts import Site
    from herringbone.controller.retry import Attempt

_TAIL_LINES = 20
_TAIL_BYTES = 32_768


class ControllerHosts(EndedHosts):
    """The hosts of a site, which this controller started.

    `hosts` are in the order of their ends, each with whether the controller had signalled it. `packing_is_ended`
    reports whether the user asked to end the packing. `finish_metrics` has the metrics of the last lines written, and
    returns notes for the log. `s3` sends what the job writes to S3.
    """

    def __init__(
        self,
        config: ControllerConfig,
        hosts: Sequence[tuple[Host, bool]],
        site: Site,
        *,
        stopped: bool,
        limit: str,
        packing_is_ended: Callable[[], bool],
        finish_metrics: Callable[[], list[str]],
        s3: S3Process,
    ) -> None:
        self.job, self.compress = config["job"], config["compress"]
        self.retries, self.policies = config["retries"], Policies(**config["policies"])
        self.earlier, self.machines = site.failed_attempts, site.machines
        self._config, self._site, self._s3 = config, site, s3
        self.events, budget = Path(config["logs"], "job.events"), config["budget"]
        # A machine of `ssh:` knows its own host alone, and packs nothing.
        self.hourly_cost = None if budget is None or config["output"] is None else budget["hourly_cost"]
        self._ends = hosts
        names = [entry["name"] for entry in config["hosts"]]
        self._hosts = sorted((host for host, _ in hosts), key=lambda host: names.index(host.name))
        self._stopped, self._limit = stopped, limit
        self._packing_is_ended, self._finish_metrics = packing_is_ended, finish_metrics
        self._record = record_of(config)

    def judge(self) -> Verdict:
        ends = [_host_end(self._config, host, ordered) for host, ordered in self._ends]
        verdict = judge(ends, stopped=self._stopped, limit=self._limit)
        stopped = verdict.secondary_status == STOPPED
        # Also a script that saves at SIGTERM and exits with 0 has not reached its end.
        if (stopped or verdict.status == COMPLETED) and self._site.is_interrupted(stopped=stopped):
            return Verdict(STOPPED, INTERRUPTED)
        return verdict

    @property
    def stopping(self) -> str:
        return LIMITS[self._limit] if self._limit else STOPPED if self._stopped else ""

    @property
    def is_part(self) -> bool:
        return self._config["output"] is None

    @property
    def planned(self) -> Attempt | None:
        # Where all hosts had ended before the request came, the job is over.
        return self._site.planned if any(ordered for _, ordered in self._ends) else None

    def logs(self) -> dict[str, str]:
        return {host.name: read_log(Path(self._config["logs"]), host.name, host.log_begins) for host in self._hosts}

    def say(self, text: str) -> None:
        first = self._hosts[0]
        first.log.say(f"[{first.name}] {text}", time.time())

    def restart(self, failed: Attempt) -> Restart:
        # The script itself decides from which file it resumes.
        folders = [Path(Paths(Path(host.base)).checkpoints) for host in self._hosts]
        if self._config["containers"] is None:
            # Our own link to the folder of checkpoint_s3_uri. A container has a mount there; a link is its script's.
            folders = [folder.resolve() for folder in folders]
        changes = self._config.get("replans", [])
        failed = with_layout(failed, self.earlier, [change["text"] for change in changes])
        failed = with_progress(failed, newest_file(*folders), self.earlier)
        attempts = [*self.earlier, failed]
        # A planned restart is none of those that the job may have after faults.
        failed = announced(failed, self.retries + len(attempts) - num_failed(attempts), {})
        if failed.layout:
            _change_layout(self._hosts, changes[num_replanned(self.earlier)])
        if failed.next_hosts:
            rewrite_hosts(self._config, failed.next_hosts)
            self._site.planned = None
        self.say(failed.announced)
        attempts = [*self.earlier, failed]
        # Recorded before the restart: when another controller goes on, this one may be killed at any moment after it.
        self._record.update(
            secondary_status=RESTARTING,
            **self._site.attempt_columns(attempts),
            description=describe_attempts(attempts),
        )
        job_events(self._config).restart(failed.number + 1, failed.why, failed.excluded)
        outcome = self._site.restart(attempts)
        if outcome is Restart.ELSEWHERE:
            # The other controller writes the record and removes what is left, so neither may happen here.
            self._s3.leave()
            self._close_logs()
        return outcome

    def requeue(self) -> bool:
        if not self._site.requeue():
            return False
        # The other controller writes the record and removes what is left.
        self._s3.leave()
        self._close_logs()
        return True

    def release(self) -> None:
        # Before the record says that the job is over: the next job of the same caller may need the devices.
        free(self._config["claim"])
        _settle_checkpoints(self._hosts)

    def collect(self, verdict: Verdict) -> None:
        # The results are here already, and those of a failed job are packed in a moment.
        if verdict.failure is None:
            self._record.update(secondary_status=UPLOADING)

    def output(self) -> Path | None:
        output = self._config["output"]
        return None if output is None else _results_folder(output, self._config.get("real_output"))

    def bases(self) -> Bases:
        return [(host.name, Path(host.base)) for host in self._hosts]

    def packing_is_ended(self) -> bool:
        return self._packing_is_ended()

    def send(self, model: Path | None) -> Path | str | None:
        if (order := self._config["s3"]) is None:
            return model
        addresses = [order["output"], None if order["checkpoints"] is None else order["checkpoints"][1]]
        self.say(f"sending to {' and '.join(filter(None, addresses))}")
        # A machine of `ssh:` packs nothing, and sends its checkpoints alone.
        if failed := self._s3.finish(self._config["output"] or "", self._packing_is_ended):
            raise NotSentError(failed)
        if model is None or order["output"] is None:
            return model
        return f"{order['output'].rstrip('/')}/{self.job}/output/{model.name}"

    def failure_of(self, error: Exception) -> Failure:
        bases = [Paths(Path(entry["base"])) for entry in self._config["hosts"]]
        models = ", ".join(str(base.model) for base in bases)
        if not isinstance(error, NotSentError):
            why = (
                f"the job ran to its end, but its results could not be packed into {self._config['output']}: "
                f"{_reason(error)}; nothing is lost: the model is in {models}, and `herringbone repack {self.job}` "
                "packs it"
            )
        elif self._config["output"] is None:
            why = (
                f"the script ran to its end, but not all of its checkpoints are in S3: {error}; nothing is lost: they "
                f"are in {', '.join(str(base.checkpoints) for base in bases)} of the machine"
            )
        else:
            why = (
                f"the job ran to its end, but not all of its results are in S3: {error}; nothing is lost: they are in "
                f"{self._config['output']} and {models}, and `herringbone repack {self.job}` sends the model"
            )
        return Failure(exception=type(error).__name__, message=why)

    def finish(self, verdict: Verdict, model: Path | str | None) -> None:
        for host in self._hosts:
            if host.log.lost:
                lost = f"{host.log.lost} bytes could not be written ({host.log.lost_why})"
                text = f"[{host.name}] the log is incomplete: {lost}"
                host.log.say(text, time.time())
        self._close_logs()
        # Before the record says that the job is over: a caller that waits for that may check that nothing is left.
        shutil.rmtree(self._config["run_folder"], ignore_errors=True)
        self._site.remove()
        self._record.finish(**last_columns(verdict, model, time.time()))

    def _close_logs(self) -> None:
        for host in self._hosts:
            host.log.close(time.time())
        # After the logs are closed: only then is a last line without its end in the file.
        if notes := self._finish_metrics():
            first = self._config["hosts"][0]["name"]
            say(f"{self._config['logs']}/{first}.log", "\n".join(f"[{first}] {printable(note)}" for note in notes))


def _change_layout(hosts: Iterable[Host], change: ReplanConfig) -> None:
    """Change the hyperparameters that the hosts' next supervisors read. Raises `OSError`."""
    file = INSIDE.hyperparameters
    for host in hosts:
        values = json.loads(read_file(host.base, str(file), limit=MAX_RECORD_BYTES))
        kept = {name: value for name, value in values.items() if name not in change["removes"]}
        # Nothing that the script has put there leads elsewhere.
        rewrite(host.base, str(file), json.dumps({**kept, **change["sets"]}).encode())


def _settle_checkpoints(hosts: Iterable[Host]) -> None:
    """Make absolute links among checkpoints relative: they name this job's folder, and a later job may go on there."""
    for host in hosts:
        folder = Path(host.base, INSIDE.checkpoints)
        with contextlib.suppress(OSError):
            settle_links(folder, [str(folder), f"{DEFAULT_BASE}/{INSIDE.checkpoints}"])


def _host_end(config: ControllerConfig, host: Host, ordered: bool) -> HostEnd:
    assert host.exit_code is not None
    if host.exit_code == 0:
        return HostEnd(host.name, 0, ordered)
    record, cause = None, host.cause
    # A killed host had no time to write the record, or wrote half of it.
    with contextlib.suppress(OSError, ContractError):
        record = parse_failure(read_file(host.base, str(INSIDE.failure_record), limit=MAX_RECORD_BYTES))
    if record is None:
        with contextlib.suppress(ContractError):
            record = parse_failure(host.log.failure.encode())
    tail = _tail(Path(config["logs"]) / f"{host.name}.log", host.log_begins)
    if record is None and host.log.lost:
        # The script's own message and the record of its failure could not be written either.
        cause = (
            cause or f"{config['logs']} took no writes ({host.log.lost_why}): {host.log.lost} bytes of the log are lost"
        )
    if record is None and not cause:
        # A foreign image writes only the plain text file that SageMaker's contract asks for.
        with contextlib.suppress(OSError):
            cause = words_of(read_file(host.base, str(INSIDE.failure), limit=4 * MAX_FAILURE_CHARS))
    return HostEnd(host.name, host.exit_code, ordered, record, tail, cause, host.lost)


def _tail(log: Path, begin: int) -> tuple[str, ...]:
    """Return the last lines of a log without their time stamps, from the byte `begin` at the earliest."""
    try:
        with log.open("rb") as file:
            file.seek(max(begin, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()[-_TAIL_LINES:]
    except OSError:
        # Somebody removed the log, which is no reason to lose the verdict.
        return ()
    return tuple(line[STAMP_CHARS:].decode("utf-8", "replace") for line in lines)


def _results_folder(output: str, real: str | None) -> Path:
    """Return the folder for results. Raises `OSError` where a link now leads to another one than at the submission."""
    if real is not None and (now := os.path.realpath(output)) != real:
        raise OSError(errno.ELOOP, f"a link leads to {now} instead; remove it, and pack the results again", output)
    return Path(output)


def _reason(error: Exception) -> str:
    """Return what happened, and to which file: a full disk names none, an entry of the script's tree does."""
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.strerror}: {printable(str(error.filename))}" if error.filename else str(error.strerror)
