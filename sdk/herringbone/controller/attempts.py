"""The step after a failed attempt: read the logs, ask the rules of `retry`, restart the hosts."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path, PurePosixPath

from herringbone.controller.hosts import Restart
from herringbone.controller.record import job_events, record_of
from herringbone.controller.retry import announcement, decide, describe_attempts, find_policy
from herringbone.records.index import RESTARTING
from herringbone.records.logs import STAMP_CHARS
from herringbone_contract.paths import Paths
from herringbone_contract.safe_tree import Entry, walk
from herringbone_contract.safe_tree import folder as safe_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.controller.hosts import Host, Site
    from herringbone.controller.verdict import Verdict
    from herringbone.protocols.controller_config import ControllerConfig

# The policies search the end of a log: the line that explains a failed attempt is among its last.
LOG_BYTES = 16 << 20
# Suffixes of files that are renamed when they are complete, so they are no checkpoints yet.
_UNFINISHED = (".tmp", ".new", ".part", ".partial", ".unfinished")


def restart(config: ControllerConfig, site: Site, verdict: Verdict) -> Restart:
    """Restart the job if the rules allow it; return which controller goes on, or that the job is over."""
    if verdict.failure is None or not config["retries"]:
        return Restart.NONE
    logs = {host.name: read_log(Path(config["logs"]), host.name, host.log_begins) for host in site.hosts}
    match = find_policy(config["policies"], logs)
    attempt = decide(verdict, match, site.machines, site.failed_attempts, config["retries"])
    first = site.hosts[0]
    if attempt is None:
        _say_why_not(first, site, config["retries"])
        return Restart.NONE
    # Only for the announcement; the script itself decides from which file it resumes.
    folders = [Path(Paths(Path(host.base)).checkpoints) for host in site.hosts]
    if config["containers"] is None:
        # Our own link to the folder of checkpoint_s3_uri. A container has a mount there, so a link is its script's.
        folders = [folder.resolve() for folder in folders]
    checkpoint = newest_file(*folders)
    attempt = replace(attempt, announced=announcement(attempt, config["retries"], {}, checkpoint))
    first.log.say(f"[{first.name}] {attempt.announced}", time.time())
    attempts = [*site.failed_attempts, attempt]
    # Recorded before the restart: when another controller goes on, this one may be killed at any moment after it.
    record_of(config).update(
        secondary_status=RESTARTING,
        **site.attempt_columns(attempts),
        description=describe_attempts(attempts),
    )
    job_events(config).restart(attempt.number + 1, attempt.why, attempt.excluded)
    return site.restart(attempts)


def newest_file(*folders: Path) -> str | None:
    """Return the name, within its folder, of the most recently written file; None when there is none.

    A folder that is a link counts as empty.
    """
    files = [(file.state.st_mtime_ns, file.name) for folder in folders for file in _files(folder)]
    return max(files)[1] if files else None


def _files(folder: Path) -> list[Entry]:
    try:
        with safe_folder(folder.parent, folder.name) as descriptor:
            files = [entry for entry in walk(descriptor) if entry.kind == "file"]
    except OSError:
        # The name is for a message only, so a folder that is missing or cannot be read has none.
        return []
    names = [(PurePosixPath(file.name), file) for file in files]
    # A dot marks what is still written: a file, or a folder with all its files.
    hidden = {path for path, _ in names if any(part.startswith(".") for part in path.parts)}
    return [file for path, file in names if path.suffix not in _UNFINISHED and path not in hidden]


def read_log(logs: Path, host: str, begin: int) -> str:
    """Return the last lines of a host's ranks, from the byte `begin` of its log at the earliest; "" without a log.

    Lines of supervisors and controllers are left out: they report what happened on other hosts.
    """
    supervisor = f"[{host}] ".encode()
    try:
        with (logs / f"{host}.log").open("rb") as file:
            file.seek(max(begin, os.fstat(file.fileno()).st_size - LOG_BYTES))
            lines = [line[STAMP_CHARS:] for line in file.read().splitlines()]
    except FileNotFoundError:
        return ""
    return "\n".join(line.decode("utf-8", "replace") for line in lines if not line.startswith(supervisor))


def _say_why_not(first: Host, site: Site, retries: int) -> None:
    if len(site.failed_attempts) >= retries:
        first.log.say(f"[{first.name}] attempt {retries + 1} of {retries + 1} has failed, too", time.time())
