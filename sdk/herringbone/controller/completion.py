"""The end of an attempt: read what the hosts left, judge, pack, and write the result into the record."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.controller.artifacts import pack_model, pack_output
from herringbone.controller.attempts import restart
from herringbone.controller.hosts import Conclusion, Host, Restart
from herringbone.controller.log_files import LogFile
from herringbone.controller.packing import PackingStoppedError, PackingWatch, not_packed
from herringbone.controller.record import record_of
from herringbone.controller.verdict import HostEnd, Verdict, judge
from herringbone.protocols.controller_config import ControllerConfig
from herringbone.records.checkpoints import settle_links
from herringbone.records.index import COMPLETED, FAILED, STOPPED, UPLOADING
from herringbone.records.logs import STAMP_CHARS
from herringbone.slots.release import free
from herringbone_contract.constants import DEFAULT_BASE, MAX_FAILURE_CHARS, MAX_RECORD_BYTES
from herringbone_contract.errors import ContractError
from herringbone_contract.failure import Failure
from herringbone_contract.failure_text import parse_failure, words_of
from herringbone_contract.masking import printable
from herringbone_contract.paths import INSIDE, Paths
from herringbone_contract.safe_tree import read_file

if TYPE_CHECKING:
    from herringbone.controller.hosts import Site
    from herringbone.controller.s3_process import S3Process

_TAIL_LINES = 20
_TAIL_BYTES = 32_768


def conclude(
    config: ControllerConfig,
    hosts: Sequence[tuple[Host, bool]],
    site: Site,
    *,
    stopped: bool,
    max_run_over: bool,
    packing_is_ended: Callable[[], bool] = lambda: False,
    finish_metrics: Callable[[], list[str]] = list,
    s3: S3Process | None = None,
) -> Conclusion:
    """Bring the attempt to its end.

    `hosts` are in the order of their ends, each with whether the controller had signalled it. The record says that
    the job is over only when nothing of the hosts is left. `packing_is_ended` reports whether the user asked to end
    the packing. `finish_metrics` has the metrics of the last lines written, and returns notes for the log.
    `s3` sends what the job writes to S3.
    """
    ends = [_host_end(config, host, ordered) for host, ordered in hosts]
    verdict = judge(ends, stopped=stopped, max_run_over=max_run_over)
    if verdict.failure is not None and not (stopped or max_run_over):
        outcome = restart(config, site, verdict)
        if outcome is Restart.HERE:
            return Conclusion.RESTART
        if outcome is Restart.ELSEWHERE:
            if s3 is not None:
                s3.leave()
            # The other controller writes the record and removes what is left, so neither may happen here.
            _close_logs(config, hosts, finish_metrics)
            return Conclusion.FAILED
    # All hosts have ended. Before the record says that the job is over: the next job of the same caller may need them.
    free(config["claim"])
    _settle_checkpoints(host for host, _ in hosts)
    record = record_of(config)
    model: Path | str | None = None
    try:
        if verdict.failure is None:
            record.update(secondary_status=UPLOADING)
        model = _pack(config, [host for host, _ in hosts], packing_is_ended, with_model=verdict.failure is None)
        model = _send(config, hosts, model, s3, packing_is_ended)
    except PackingStoppedError:
        # A job that was stopped or failed before keeps that as its reason.
        if verdict.status == COMPLETED:
            verdict = Verdict(STOPPED, STOPPED)
    except OSError as error:
        # The failure of the script says more than a full disk does.
        if verdict.failure is None:
            verdict = Verdict(FAILED, FAILED, _not_packed(config, error))
    except NotSentError as error:
        if verdict.failure is None:
            verdict = Verdict(FAILED, FAILED, _not_sent(config, error))
    for host, _ in hosts:
        if host.log.lost:
            text = f"[{host.name}] the log is incomplete: {host.log.lost} bytes could not be written"
            host.log.say(text, time.time())
    _close_logs(config, hosts, finish_metrics)
    # Before the record says that the job is over: a caller that waits for that may check that nothing is left.
    shutil.rmtree(config["run_folder"], ignore_errors=True)
    site.remove()
    record.finish(
        status=verdict.status,
        secondary_status=verdict.secondary_status,
        ended=time.time(),
        failure=None if verdict.failure is None else verdict.failure.to_json(),
        model=None if model is None else str(model),
    )
    return Conclusion.OVER if verdict.failure is None else Conclusion.FAILED


def _settle_checkpoints(hosts: Iterable[Host]) -> None:
    """Make absolute links among checkpoints relative: they name this job's folder, and a later job may go on there."""
    for host in hosts:
        folder = Path(host.base, INSIDE.checkpoints)
        with contextlib.suppress(OSError):
            settle_links(folder, [str(folder), f"{DEFAULT_BASE}/{INSIDE.checkpoints}"])


def _close_logs(
    config: ControllerConfig, hosts: Sequence[tuple[Host, bool]], finish_metrics: Callable[[], list[str]]
) -> None:
    for host, _ in hosts:
        host.log.close(time.time())
    # After the logs are closed: only then is a last line without its end in the file.
    notes = finish_metrics()
    if notes:
        first = config["hosts"][0]["name"]
        log = LogFile(f"{config['logs']}/{first}.log")
        for note in notes:
            log.say(f"[{first}] {printable(note)}", time.time())
        log.close(time.time())


def _host_end(config: ControllerConfig, host: Host, ordered: bool) -> HostEnd:
    assert host.exit_code is not None
    if host.exit_code == 0:
        return HostEnd(host.name, 0, ordered)
    record, cause = None, host.cause
    # A killed host had no time to write the record, or wrote half of it.
    with contextlib.suppress(OSError, ContractError):
        record = parse_failure(read_file(host.base, str(INSIDE.failure_record), limit=MAX_RECORD_BYTES))
    tail = _tail(Path(config["logs"]) / f"{host.name}.log", host.log_begins)
    if record is None and host.log.lost:
        # The script's own message and the record of its failure could not be written either.
        cause = cause or f"the disk of {config['logs']} was full: {host.log.lost} bytes of the log could not be written"
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


def _pack(
    config: ControllerConfig, hosts: Sequence[Host], is_ended: Callable[[], bool], *, with_model: bool
) -> Path | None:
    """Pack the hosts' outputs, in the order of the plan and not of their ends; return the path of the model.

    Raises `PackingStoppedError` when the user ends the packing, and `OSError` as `pack` does.
    """
    if config["output"] is None:
        return None
    # The order decides whose file is packed when two hosts wrote the same name, so it must not depend on time.
    ordered = sorted(hosts, key=lambda host: [entry["name"] for entry in config["hosts"]].index(host.name))
    output = _results_folder(config["output"], config.get("real_output"))

    def say(text: str) -> None:
        ordered[0].log.say(f"[{ordered[0].name}] packing: {text}", time.time())

    bases = [(host.name, Path(host.base)) for host in ordered]
    watch = PackingWatch(is_ended=is_ended, say=say)
    try:
        pack_output(bases, output, compress=config["compress"], say=say, step=watch)
        return pack_model(bases, output, compress=config["compress"], say=say, step=watch) if with_model else None
    except PackingStoppedError:
        if with_model:
            say(not_packed(config["job"], _model_folders(config)))
        raise


def _results_folder(output: str, real: str | None) -> Path:
    """Return the folder for results. Raises `OSError` where a link now leads to another one than at the submission."""
    if real is not None and (now := os.path.realpath(output)) != real:
        raise OSError(errno.ELOOP, f"a link leads to {now} instead; remove it, and pack the results again", output)
    return Path(output)


class NotSentError(Exception):
    """Something that the job was to write to S3 is not there."""


def _send(
    config: ControllerConfig,
    hosts: Sequence[tuple[Host, bool]],
    model: Path | None,
    s3: S3Process | None,
    is_ended: Callable[[], bool],
) -> Path | str | None:
    """Send checkpoints and packed results to S3; return the model's address, or its path. Raises `NotSentError`."""
    if s3 is None or config["s3"] is None:
        return model
    first, order = hosts[0][0], config["s3"]
    addresses = [order["output"], None if order["checkpoints"] is None else order["checkpoints"][1]]
    first.log.say(f"[{first.name}] sending to {' and '.join(filter(None, addresses))}", time.time())
    # A machine of `ssh:` packs nothing, and sends its checkpoints alone.
    if failed := s3.finish(config["output"] or "", is_ended):
        raise NotSentError(failed)
    if model is None or order["output"] is None:
        return model
    return f"{order['output'].rstrip('/')}/{config['job']}/output/{model.name}"


def _not_sent(config: ControllerConfig, error: NotSentError) -> Failure:
    if config["output"] is None:
        folders = ", ".join(str(Paths(Path(host["base"])).checkpoints) for host in config["hosts"])
        return Failure(
            exception=type(error).__name__,
            message=(
                f"the script ran to its end, but not all of its checkpoints are in S3: {error}; nothing is lost: they "
                f"are in {folders} of the machine"
            ),
        )
    return Failure(
        exception=type(error).__name__,
        message=(
            f"the job ran to its end, but not all of its results are in S3: {error}; nothing is lost: they are in "
            f"{config['output']} and {_model_folders(config)}, and `herringbone repack {config['job']}` sends the model"
        ),
    )


def _model_folders(config: ControllerConfig) -> str:
    return ", ".join(str(Paths(Path(host["base"])).model) for host in config["hosts"])


def _not_packed(config: ControllerConfig, error: OSError) -> Failure:
    return Failure(
        exception=type(error).__name__,
        message=(
            f"the job ran to its end, but its results could not be packed into {config['output']}: {_reason(error)}; "
            f"nothing is lost: the model is in {_model_folders(config)}, "
            f"and `herringbone repack {config['job']}` packs it"
        ),
    )


def _reason(error: OSError) -> str:
    """Return what happened, and to which file: a full disk names none, an entry of the script's tree does."""
    return f"{error.strerror}: {printable(str(error.filename))}" if error.filename else str(error.strerror)
