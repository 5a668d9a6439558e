"""The next step after a failed attempt: read the logs, ask the rule, start the hosts again."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from herringbone.controller.record import record_of
from herringbone.controller.retry import announcement, decide, described, find
from herringbone.jobs.index import RESTARTING
from herringbone.jobs.logs import STAMP_CHARS
from herringbone_contract.paths import Paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.controller.config import Order
    from herringbone.controller.hosts import Host, Renewal, Site
    from herringbone.controller.verdict import Verdict

# What broke an attempt stands at its end.
LOG_BYTES = 16 << 20
# By what names go that are to be others when they are whole.
_UNFINISHED = (".tmp", ".new", ".part", ".partial", ".unfinished")


def begin_anew(order: Order, site: Site, verdict: Verdict) -> Renewal:
    """Have the site begin anew where the job may, and say where; None where it is over."""
    if verdict.failure is None or not order["retries"]:
        return None
    logs = {host.name: read_log(Path(order["logs"]), host.name, host.log_begins) for host in site.hosts}
    failed = decide(verdict, find(order["policies"], logs), site.places, site.failed, order["retries"])
    first = site.hosts[0]
    if failed is None:
        _say_why_not(first, site, order["retries"])
        return None
    checkpoint = newest_file(*(Path(Paths(Path(host.base)).checkpoints) for host in site.hosts))
    failed = replace(failed, announced=announcement(failed, order["retries"], {}, checkpoint))
    first.log.say(f"[{first.name}] {failed.announced}", time.time())
    story = [*site.failed, failed]
    # Before it happens: where another controller goes on, there is no time from then on.
    record_of(order).update(secondary_status=RESTARTING, **site.told(story), description=described(story))
    return site.begin_anew(story)


def newest_file(*folders: Path) -> str | None:
    """Return the name, within its folder, of the file that was written last; None where there is none."""
    found = [(file.stat().st_mtime_ns, file.relative_to(folder)) for folder in folders for file in _files(folder)]
    return max(found)[1].as_posix() if found else None


def _files(folder: Path) -> list[Path]:
    found = (file for file in folder.rglob("*") if file.is_file() and file.suffix not in _UNFINISHED)
    return [file for file in found if not file.name.startswith(".")]


def read_log(logs: Path, host: str, begin: int) -> str:
    """Return what a host's ranks said last, from the byte `begin` of its log at the earliest; "" where there is none.

    Supervisors and controllers say what happened elsewhere, and no more about their own host.
    """
    others = f"[{host}] ".encode()
    try:
        with (logs / f"{host}.log").open("rb") as file:
            file.seek(max(begin, os.fstat(file.fileno()).st_size - LOG_BYTES))
            lines = [line[STAMP_CHARS:] for line in file.read().splitlines()]
    except FileNotFoundError:
        return ""
    return "\n".join(line.decode("utf-8", "replace") for line in lines if not line.startswith(others))


def _say_why_not(first: Host, site: Site, retries: int) -> None:
    if len(site.failed) >= retries:
        first.log.say(f"[{first.name}] attempt {retries + 1} of {retries + 1} has failed, too", time.time())
