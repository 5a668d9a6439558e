"""The folder of all jobs on this machine: `$HERRINGBONE_HOME`, by default `~/.herringbone`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from herringbone.system.user_paths import expanded, home_folder
from herringbone_contract.errors import HerringboneError, JobNameError

HOME_VARIABLE = "HERRINGBONE_HOME"
_LAST_WORDS_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The folder of one job.

    >>> JobFolder(Path("/jobs/a")).host("algo-1")
    PosixPath('/jobs/a/hosts/algo-1/ml')
    """

    path: Path

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log(self, host: str) -> Path:
        return self.logs / f"{_part(host)}.log"

    def events(self, host: str) -> Path:
        """The events of one host; see `herringbone_contract.events.format`."""
        return self.logs / f"{_part(host)}.events"

    def metric_events(self, host: str) -> Path:
        """The metrics that were found in the log of one host."""
        return self.logs / f"{_part(host)}.metrics.events"

    def all_events(self, hosts: Iterable[str]) -> list[Path]:
        """All files of events of a job with these hosts.

        >>> [path.name for path in JobFolder(Path("/jobs/a")).all_events(["algo-1"])]
        ['job.events', 'algo-1.events', 'algo-1.metrics.events']
        """
        return [self.job_events, *(path for host in hosts for path in (self.events(host), self.metric_events(host)))]

    @property
    def job_events(self) -> Path:
        """The events about the whole job."""
        return self.logs / "job.events"

    @property
    def fetched(self) -> Path:
        """A file that says that everything that a job's machines had of it has been fetched."""
        return self.path / "results.fetched"

    @property
    def requests(self) -> Path:
        """The requests of clients to a running job; its controller makes the folder once it takes requests."""
        return self.path / "requests"

    def host(self, host: str) -> Path:
        """Return the base folder of the container contract for that host."""
        return self.path / "hosts" / _part(host) / "ml"

    def checkpoints(self, host: str) -> Path:
        """The folder of a host's checkpoints. Hosts on one disk share the first one's: one rank may save for all."""
        return self.host(host) / "checkpoints"

    def layers(self, host: str) -> Path:
        """The folder of what a container has changed in its channels; see `herringbone.backends.docker.layers`."""
        return self.path / "layers" / _part(host)

    @property
    def shared(self) -> Path:
        """The folder that every host sees; `/opt/ml/shared` in AWS's local mode."""
        return self.path / "shared"

    @property
    def output(self) -> Path:
        return self.path / "output"

    @property
    def s3(self) -> Path:
        """The files of buckets that the job reads, and its checkpoints for one; see `herringbone.s3.staging`."""
        return self.path / "s3"

    @property
    def s3_checkpoints(self) -> Path:
        """The folder whose checkpoints travel to and from an `s3://` address."""
        return self.s3 / "checkpoints"

    @property
    def report(self) -> Path:
        """The page of a job that is over, as one file; see `herringbone.views.page.at_end`."""
        return self.path / "report.html"

    @property
    def controller_log(self) -> Path:
        """The error output of the controller itself; normally empty."""
        return self.path / "controller.log"

    @property
    def exports(self) -> Path:
        """The state of the job's exports to trackers; made for the first one."""
        return self.path / "exports"

    @property
    def end(self) -> Path:
        """The columns of a job that is over, as JSON, while its controller cannot write them into the index."""
        return self.path / "end.json"

    def controller_words(self) -> str:
        """Return the end of the controller's log, which says why the controller died; "" without a log."""
        try:
            return self.controller_log.read_text(errors="replace").strip()[-_LAST_WORDS_CHARS:]
        except OSError:
            return ""


@dataclass(frozen=True, slots=True)
class Home:
    """The per-user folder of jobs, private to the user (0700).

    The folder itself may be an existing one that others can list; jobs, cache and index are private in any case.
    """

    path: Path

    @property
    def index(self) -> Path:
        return self.path / "index.sqlite"

    @property
    def checkpoints(self) -> Path:
        """The folders that resumed jobs have as `checkpoint_s3_uri`: copies of an earlier job's checkpoints."""
        return self.path / "checkpoints"

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    @property
    def measurements(self) -> Path:
        """The measured steps of scripts; see `herringbone.prediction.cache`."""
        return self.cache / "measurements"

    @property
    def has_measurements(self) -> bool:
        """True if a script was measured, so that something may be known about a job before it starts."""
        try:
            return next(self.measurements.iterdir(), None) is not None
        except OSError:
            return False

    @property
    def tunings(self) -> Path:
        """The folders of tuning jobs; see `herringbone.tuner.store`."""
        return self.path / "tunings"

    def tuning(self, name: str) -> Path:
        """Return the folder of a tuning job. Raises `JobNameError` for a name that would lead to another folder."""
        return self.tunings / _part(name)

    @property
    def rehearsals(self) -> Path:
        """The folders of rehearsals; see `herringbone.records.rehearsals`."""
        return self.path / "rehearsals"

    def rehearsal(self, name: str) -> Path:
        """Return the folder of a rehearsal. Raises `JobNameError` for a name that would lead to another folder."""
        return self.rehearsals / _part(name)

    def job(self, name: str) -> JobFolder:
        """Return the folder of a job. Raises `JobNameError` for a name that would lead to another folder."""
        return JobFolder(self.path / "jobs" / _part(name))

    def make(self) -> None:
        """Create the folder. Raises `HerringboneError` when that is not possible."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.path / "jobs", self.cache):
                folder.mkdir(mode=0o700, exist_ok=True)
                _make_private(folder)
            # The rows hold plans and failures. sqlite gives its journals the mode of the index.
            self.index.touch(mode=0o600)
            _make_private(self.index)
        except OSError as error:
            raise HerringboneError(
                f"the jobs' folder {self.path} cannot be created: {error.strerror}; "
                f"set {HOME_VARIABLE} to a folder that you may write"
            ) from error


def _make_private(path: Path) -> None:
    """Take the permissions of all others from a file or folder of ours."""
    state = path.stat()
    if state.st_mode & 0o077 and state.st_uid == os.geteuid():
        path.chmod(state.st_mode & 0o700)


def _part(name: str) -> str:
    """Return a name that becomes one part of a path; the one place where names of jobs and hosts do."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise JobNameError(f"{name!r} is the name of no job or host; it would lead to another folder")
    return name


def find_home() -> Home:
    """Return the home that the environment names now."""
    folder = os.environ.get(HOME_VARIABLE)
    return Home(expanded(folder).absolute() if folder else home_folder() / ".herringbone")
