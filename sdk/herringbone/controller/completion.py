"""The end of a job: read what the hosts left, judge, pack, and write the result into the index."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from herringbone.controller.artifacts import pack
from herringbone.controller.attempts import begin_anew
from herringbone.controller.config import Order
from herringbone.controller.hosts import Host
from herringbone.controller.record import record_of
from herringbone.controller.verdict import HostEnd, Verdict, judge
from herringbone.jobs.index import FAILED, UPLOADING
from herringbone.jobs.logs import STAMP_CHARS
from herringbone_contract.constants import MAX_FAILURE_CHARS
from herringbone_contract.errors import ContractError
from herringbone_contract.failure import Failure, parse_failure
from herringbone_contract.paths import Paths

if TYPE_CHECKING:
    from herringbone.controller.hosts import Site

Conclusion = Literal["well", "failed", "anew"]
_TAIL_LINES = 20
_TAIL_BYTES = 32_768


def conclude(
    order: Order,
    hosts: Sequence[tuple[Host, bool]],
    site: Site,
    *,
    stopped: bool,
    max_run_over: bool,
) -> Conclusion:
    """Bring the attempt to its end; `hosts` are in the order of their ends, each with whether it had been told to end.

    Only when nothing is left of the hosts is the job over.
    """
    ends = [_host_end(order, host, ordered) for host, ordered in hosts]
    verdict = judge(ends, stopped=stopped, max_run_over=max_run_over)
    if verdict.failure is not None and not (stopped or max_run_over):
        renewal = begin_anew(order, site, verdict)
        if renewal == "here":
            return "anew"
        if renewal == "elsewhere":
            for host, _ in hosts:
                host.log.close(time.time())
            return "failed"
    record = record_of(order)
    model = None
    try:
        if verdict.failure is None:
            record.update(secondary_status=UPLOADING)
        model = _pack(order, [host for host, _ in hosts], with_model=verdict.failure is None)
    except OSError as error:
        if verdict.failure is None:
            verdict = Verdict(FAILED, FAILED, _not_packed(order, error))
    for host, _ in hosts:
        if host.log.lost:
            host.log.say(f"[{host.name}] the log is not whole: {host.log.lost} bytes found no room", time.time())
        host.log.close(time.time())
    shutil.rmtree(order["run_folder"], ignore_errors=True)
    site.leave()
    record.update(
        status=verdict.status,
        secondary_status=verdict.secondary_status,
        ended=time.time(),
        failure=None if verdict.failure is None else verdict.failure.to_json(),
        model=None if model is None else str(model),
    )
    return "well" if verdict.failure is None else "failed"


def _host_end(order: Order, host: Host, ordered: bool) -> HostEnd:
    assert host.exit_code is not None
    if host.exit_code == 0:
        return HostEnd(host.name, 0, ordered)
    paths = Paths(Path(host.base))
    record, cause = None, host.cause
    # A host that was killed had no time to write one, or to finish it.
    with contextlib.suppress(OSError, ContractError):
        record = parse_failure(Path(paths.failure_record).read_bytes())
    tail = _tail(Path(order["logs"]) / f"{host.name}.log", host.log_begins)
    if record is None and not cause:
        # What the contract asks of every image.
        with contextlib.suppress(OSError):
            cause = Path(paths.failure).read_text(encoding="utf-8", errors="replace")[:MAX_FAILURE_CHARS]
    return HostEnd(host.name, host.exit_code, ordered, record, tail, cause, host.lost)


def _tail(log: Path, begin: int) -> tuple[str, ...]:
    """Return the last lines of a log, from the byte `begin` at the earliest, without their time."""
    with log.open("rb") as file:
        file.seek(max(begin, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().splitlines()[-_TAIL_LINES:]
    return tuple(line[STAMP_CHARS:].decode("utf-8", "replace") for line in lines)


def _pack(order: Order, hosts: Sequence[Host], *, with_model: bool) -> Path | None:
    """Pack in the order of the hosts' names, whatever the order of their ends; return where the model is."""
    if order["output"] is None:
        return None
    ordered = sorted(hosts, key=lambda host: [entry["name"] for entry in order["hosts"]].index(host.name))
    bases = [(host.name, Paths(Path(host.base))) for host in ordered]
    output = Path(order["output"])
    ending = ".tar.gz" if order["compress"] else ""

    def say(text: str) -> None:
        ordered[0].log.say(f"[{ordered[0].name}] packing: {text}", time.time())

    data = [(name, Path(paths.output_data)) for name, paths in bases]
    if any(next(folder.rglob("*"), None) for _, folder in data):
        pack(data, output / f"output{ending}", compress=order["compress"], say=say)
    if not with_model:
        return None
    models = [(name, Path(paths.model)) for name, paths in bases]
    return pack(models, output / f"model{ending}", compress=order["compress"], say=say)


def _not_packed(order: Order, error: OSError) -> Failure:
    folders = ", ".join(str(Paths(Path(host["base"])).model) for host in order["hosts"])
    return Failure(
        exception=type(error).__name__,
        message=(
            f"the job ran to its end, but what it left could not be packed into {order['output']}: {error.strerror}; "
            f"nothing is lost: the model is in {folders}"
        ),
    )
