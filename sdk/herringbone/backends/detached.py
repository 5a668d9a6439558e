"""Base class for backends that run a detached controller per job: start it, hand it the job, read the result.

The client claims the name, starts the controller, prepares the job while it comes up, and hands the order over;
all that follows is the controller's. See docs/architecture.md for the processes and the folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.controller.descriptors import CONTROLLER_SIGNALS
from herringbone.controller.retry import policies_of
from herringbone.jobs.home import Home
from herringbone.jobs.index import STOPPED, JobIndex, JobRecord
from herringbone.jobs.interrupt import OnInterrupt
from herringbone.jobs.logs import FileLogs
from herringbone.jobs.polling import Pace
from herringbone.planning.checks import output_folder
from herringbone.processes import identity, is_alive, pid_of
from herringbone_contract.constants import DEFAULT_STOP_GRACE_SECONDS, HostVariable
from herringbone_contract.errors import InputError, JobNameError, JobNotFoundError, LaunchError, OptionError
from herringbone_contract.failure import Failure

if TYPE_CHECKING:
    from herringbone.controller.config import Order
    from herringbone.planning.plan import JobPlan

# A failed host's neighbours hear of it from their own supervisors at once; this is for those that do not.
PATIENCE_SECONDS = 5.0
CONTROLLER = (sys.executable, "-m", "herringbone.controller")
# A look at a row and at a log takes 0.15 ms.
_PACE = Pace(shortest=0.005, longest=0.05, slower=1.02)
_KILL_SECONDS = 15.0
_POLL_SECONDS = 0.01
_TEMPORARY_FOLDER_CHARS = 60
_LAST_WORDS_CHARS = 1_000


class KeptBackend(ABC):
    """Runs jobs below `home`; `controller` is the command that starts a controller.

    `patience` is how long, in seconds, hosts may outlive the first that failed before they are told to stop.
    """

    name: str
    pace = _PACE
    on_interrupt: OnInterrupt = "stop"

    def __init__(
        self, home: Home, *, controller: tuple[str, ...] = CONTROLLER, patience: float = PATIENCE_SECONDS
    ) -> None:
        self._home = home
        self._controller = controller
        self._patience = patience
        self._index = JobIndex(home.index)

    @abstractmethod
    def review(self, plan: JobPlan) -> tuple[str, ...]:
        """See `Backend.review`."""

    def request(self, plan: JobPlan) -> dict[str, Any] | None:  # noqa: ARG002 - no service is asked
        return None

    @abstractmethod
    def _start(self, plan: JobPlan, order: Order, lent: Sequence[int], controller: str) -> None:
        """Prepare the job, start what the controller does not start itself, and say in the order what its hosts are.

        `lent` are the descriptors of `_lend`, `controller` its identity. An error leaves nothing behind but the
        job's folder.
        """

    def _lend(self, plan: JobPlan) -> list[int]:  # noqa: ARG002 - for those who have something to lend
        """Open what the controller is born with; the descriptors have the same numbers there."""
        return []

    def submit(self, plan: JobPlan) -> None:
        self._home.make()
        name = plan.job_name
        record = JobRecord(
            name=name,
            backend=self.name,
            plan=json.dumps(plan.to_dict()),
            created=time.time(),
            client=identity(os.getpid()),
        )
        folder = self._home.job(name)
        controller, lent, made = None, [], False
        try:
            self._index.add(record)
            self._make_folder(folder.path)
            made = True
            lent = self._lend(plan)
            controller = self._start_controller(name, lent)
            caretaker = identity(controller.pid)
            run_folder = _new_run_folder()
            # First into the index: what is written there is tidied up, whatever happens to us.
            self._index.update(name, controller=caretaker, run_folder=str(run_folder))
            run_folder.mkdir(mode=0o700)
            order = self._order(plan, str(run_folder))
            self._start(plan, order, lent, str(caretaker))
            self._hand_over(controller, order)
        except BaseException as error:
            self._take_back(record, controller, error, with_folder=made)
            if isinstance(error, OSError):
                raise LaunchError(f"job {name} could not be prepared in {folder.path}: {error}") from error
            raise
        finally:
            # The controller alone holds them from now on: that it is gone shows at their other ends.
            for descriptor in lent:
                os.close(descriptor)
        # It outlives this Python on purpose, which Popen would call a leak; `is_alive` reaps it.
        controller.returncode = 0

    def describe(self, name: str) -> JobRecord:
        record = self._index.get(name)
        caretaker = record.controller or record.client
        if record.done or (caretaker is not None and is_alive(caretaker)):
            return record
        # The controller may have written its last word between the two looks.
        record = self._index.get(name)
        if not record.done:
            self._bury(record)
        return self._index.get(name)

    def logs(self, name: str) -> FileLogs:
        hosts = self._index.get(name).plan_dict["hosts"]
        return FileLogs(self._home.job(name).log(host["name"]) for host in hosts)

    def stop(self, name: str, grace: float | None = None) -> None:
        if grace is not None:
            self._index.update(name, unless_done=True, stop_grace=grace)
        self._signal(name, signal.SIGTERM)

    def kill(self, name: str) -> None:
        self._signal(name, signal.SIGINT)
        deadline = time.monotonic() + _KILL_SECONDS
        while not self.describe(name).done and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def bill(self, name: str) -> str | None:  # noqa: ARG002 - hosts of one's own
        return None

    def fetch_model(self, name: str, into: Path) -> Path:  # noqa: ARG002 - it lies here already
        record = self.describe(name)
        if record.model is None:
            raise InputError(f"job {name} is {record.status} and has no model: it packs one at its end")
        return Path(record.model)

    def _signal(self, name: str, number: int) -> None:
        record = self.describe(name)
        # For a moment, a job that is being prepared has a name and no controller yet.
        while not record.done and record.controller is None:
            time.sleep(_POLL_SECONDS)
            record = self.describe(name)
        if not record.done and record.controller is not None:
            os.kill(pid_of(record.controller), number)

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            raise JobNameError(
                f"job name {folder.name!r}: its folder {folder} is there already, of a job that the index has "
                "forgotten; choose another name, or move the folder away"
            ) from None
        self._home.job(folder.name).logs.mkdir()

    def _start_controller(self, name: str, lent: Sequence[int]) -> subprocess.Popen[bytes]:
        """Start the controller; it comes up while we write the job's folder, and then reads its order."""
        folder = self._home.job(name)
        with folder.controller_log.open("wb") as log, _blocked(CONTROLLER_SIGNALS):
            return subprocess.Popen(
                [*self._controller, name],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=lent,
                # `-m` looks for modules in the current folder first: the user's may hold a json.py.
                cwd=folder.path,
                env={**os.environ, **search_path()},
            )

    def _hand_over(self, controller: subprocess.Popen[bytes], order: Order) -> None:
        assert controller.stdin is not None
        try:
            with controller.stdin as pipe:
                pipe.write(json.dumps(order).encode())
        except BrokenPipeError:
            raise LaunchError(f"the job's controller did not start: {self._last_words(order['job'])}") from None

    def _last_words(self, name: str) -> str:
        """Return what the controller said of its own death."""
        try:
            said = self._home.job(name).controller_log.read_text(errors="replace").strip()[-_LAST_WORDS_CHARS:]
        except OSError:
            said = ""
        return said or "it left no word"

    def _order(self, plan: JobPlan, run_folder: str) -> Order:
        folder = self._home.job(plan.job_name)
        return {
            "job": plan.job_name,
            "index": str(self._home.index),
            "report": None,
            "logs": str(folder.logs),
            "hosts": [{"name": host.name, "base": str(folder.host(host.name))} for host in plan.hosts],
            "processes": None,
            "containers": None,
            "steps": None,
            "run_folder": run_folder,
            "retries": plan.options.max_retry_attempts or 0,
            "policies": policies_of(plan.options.log_policies),
            "max_run": plan.options.max_run,
            "warning": 0.0,
            "stop_grace": stop_grace(),
            "patience": self._patience,
            "output": str(output_folder(plan, folder)),
            "compress": not plan.options.disable_output_compression,
        }

    def _take_back(
        self,
        record: JobRecord,
        controller: subprocess.Popen[bytes] | None,
        error: BaseException,
        *,
        with_folder: bool,
    ) -> None:
        """Leave nothing of a job that could not be submitted; one that Ctrl-C caught half way stays as Stopped."""
        if controller is not None:
            controller.kill()
            controller.communicate()
        name = record.name
        try:
            stored = self._index.get(name)
        except JobNotFoundError:
            return
        if (stored.client, stored.created) != (record.client, record.created):
            return  # the name is another job's: that is why we are here
        if stored.run_folder is not None:
            shutil.rmtree(stored.run_folder, ignore_errors=True)
        if isinstance(error, KeyboardInterrupt):
            self._index.update(name, unless_done=True, status=STOPPED, secondary_status=STOPPED, ended=time.time())
            return
        self._index.remove(name)
        if with_folder:
            shutil.rmtree(self._home.job(name).path, ignore_errors=True)

    def _bury(self, record: JobRecord) -> None:
        """Write down the end of a job whose controller was killed; its supervisors stop by themselves."""
        if record.controller is None:
            message = "the Python that was submitting it died before it had a controller"
        else:
            message = f"its controller died, killed or with its machine: {self._last_words(record.name)}"
        failure = Failure(message=message)
        self._index.fail(record.name, failure)
        if record.run_folder is not None:
            shutil.rmtree(record.run_folder, ignore_errors=True)


def _new_run_folder() -> Path:
    """Name the private folder for sockets; the name is short, for a socket's path has about 100 bytes."""
    usual = tempfile.gettempdir()
    return Path(usual if len(usual) <= _TEMPORARY_FOLDER_CHARS else "/tmp", f"hb-{os.urandom(6).hex()}")  # noqa: S108


@contextmanager
def _blocked(numbers: Collection[signal.Signals]) -> Iterator[None]:
    """Keep signals waiting; a process started meanwhile has them waiting too, until it is ready to take them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop_grace() -> float:
    """Return the seconds between SIGTERM and SIGKILL, which the environment may shorten."""
    given = os.environ.get(HostVariable.STOP_GRACE)
    try:
        return DEFAULT_STOP_GRACE_SECONDS if given is None else float(given)
    except ValueError:
        raise OptionError(f"{HostVariable.STOP_GRACE}={given}: expected a number of seconds") from None


def search_path() -> dict[str, str]:
    """Return PYTHONPATH with absolute entries: the controller and the hosts run in other folders."""
    path = os.environ.get("PYTHONPATH")
    if not path:
        return {}
    return {"PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in path.split(os.pathsep))}  # noqa: PTH100
