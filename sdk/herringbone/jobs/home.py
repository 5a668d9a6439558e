"""The folder of all jobs on this machine: `$HERRINGBONE_HOME`, by default `~/.herringbone`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from herringbone.user_paths import expanded
from herringbone_contract.errors import HerringboneError

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
        return self.logs / f"{host}.log"

    def host(self, host: str) -> Path:
        """Return the base folder of the container contract for that host."""
        return self.path / "hosts" / host / "ml"

    @property
    def shared(self) -> Path:
        """The folder that every host sees; `/opt/ml/shared` in AWS's local mode."""
        return self.path / "shared"

    @property
    def output(self) -> Path:
        return self.path / "output"

    @property
    def controller_log(self) -> Path:
        """The error output of the controller itself; normally empty."""
        return self.path / "controller.log"

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
    """The per-user folder of jobs, private to the user (0700)."""

    path: Path

    @property
    def index(self) -> Path:
        return self.path / "index.sqlite"

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    def job(self, name: str) -> JobFolder:
        return JobFolder(self.path / "jobs" / name)

    def make(self) -> None:
        """Create the folder. Raises `HerringboneError` when that is not possible."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.path / "jobs").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise HerringboneError(
                f"the jobs' folder {self.path} cannot be created: {error.strerror}; "
                f"set {HOME_VARIABLE} to a folder that you may write"
            ) from error


def find_home() -> Home:
    """Return the home that the environment names now."""
    folder = os.environ.get(HOME_VARIABLE)
    return Home(expanded(folder).absolute() if folder else Path.home() / ".herringbone")
