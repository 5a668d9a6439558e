"""The life of a job's row in the index, the same for every backend: claimed, settled, polled until the job is over.

    claim()             the row names the client that submits the job
       |  error         the row and the folder are removed; after Ctrl-C the row says Stopped
       v
    the backend starts the job, and writes into the row which process or service has it from now on
       |
       v
    settle()            `describe` writes what is true now, from the controller, the cluster or the service
       |
       v
    poll_until_done()   a caller that needs the end waits for it

A backend adds the steps inside `claim`, and the way in which it learns what is true.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from herringbone.controller.report import start_report
from herringbone.records.home import Home
from herringbone.records.index import COMPLETED, STOPPED, TERMINAL, JobIndex, JobRecord
from herringbone.records.job_events import JobEvents
from herringbone.records.state_lines import why_of
from herringbone.system.processes import identity, may_live, place, sees
from herringbone_contract.errors import IndexBusyError, InputError, JobNameError, JobNotFoundError, LaunchError
from herringbone_contract.failure import Failure

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.records.home import JobFolder


class Claim:
    """A job name that this process holds while it submits the job."""

    def __init__(self, index: JobIndex, record: JobRecord, folder: JobFolder) -> None:
        self._index = index
        self._record = record
        self._folder = folder
        self._folder_made = False
        self._kept = False

    def make_folder(self, *, exist_ok: bool = False) -> None:
        """Create the job's folder, private to the user.

        Raises `JobNameError` when a job that the index no longer has left a folder, unless `exist_ok`.
        """
        path = self._folder.path
        try:
            path.mkdir(mode=0o700, exist_ok=exist_ok)
        except FileExistsError:
            raise JobNameError(
                f"job name {path.name!r}: its folder {path} already exists and belongs to a job that is no longer in "
                "the index; choose another name, or move the folder away"
            ) from None
        self._folder_made = True

    def keep(self) -> None:
        """Leave the row as it is after an error: the job exists, or nobody knows yet, and `settle` finds out."""
        self._kept = True

    def end_with(self, error: BaseException, *, stopped_on_interrupt: bool) -> None:
        """Remove what the failed submission left, or mark the row as Stopped after Ctrl-C."""
        # The name may belong to another job, which is then the reason for the error; that job must stay.
        if self._kept or not self._is_ours():
            return
        if stopped_on_interrupt and isinstance(error, KeyboardInterrupt):
            columns = {"status": STOPPED, "secondary_status": STOPPED, "ended": time.time()}
            self._index.update(self._record.name, unless_done=True, **columns)
            return
        # The row goes first: while it exists, other processes may read the folder.
        removed = self._remove_row()
        if self._folder_made:
            # Only a folder that this claim created: an older one may contain the results of a forgotten job.
            shutil.rmtree(self._folder.path, ignore_errors=True)
        if not removed:
            # On a full disk there is room now. The user must see the first error in any case, which is the reason.
            self._remove_row()

    def preparation_error(self, error: OSError) -> LaunchError:
        place = f" in {self._folder.path}" if self._folder_made else ""
        return LaunchError(f"job {self._record.name} could not be prepared{place}: {error}")

    def _remove_row(self) -> bool:
        try:
            self._index.remove(self._record.name)
        except IndexBusyError:
            return False
        return True

    def _is_ours(self) -> bool:
        """Report whether the row is the one that this claim added, and not another job's of the same name."""
        try:
            stored = self._index.get(self._record.name)
        except (JobNotFoundError, IndexBusyError):
            return False
        # A submission clears the client in its last step, so None is ours as well.
        return stored.created == self._record.created and stored.client in (None, self._record.client)


@contextmanager
def claim(
    plan: JobPlan, backend: str, home: Home, *, service: str | None = None, stopped_on_interrupt: bool = True
) -> Iterator[Claim]:
    """Hold the job's name while the body submits the job, and undo the claim when the body fails.

    >>> with claim(plan, "local_process", find_home()) as job:      # doctest: +SKIP
    ...     job.make_folder()

    After an error neither the row nor the folder exists; after Ctrl-C the row says Stopped, unless
    `stopped_on_interrupt` is False. The body itself ends the processes that it started. An `OSError` of the body
    becomes a `LaunchError`. Raises `JobNameError` when the name is taken.
    """
    home.make()
    record = JobRecord(
        name=plan.job_name,
        backend=backend,
        plan=json.dumps(plan.to_dict()),
        created=time.time(),
        # Pid and start time: a pid alone may be given to another process after the client's death.
        client=identity(os.getpid()),
        place=place(),
        hosts=len(plan.hosts),
        service=service,
    )
    index = JobIndex(home.index)
    job = Claim(index, record, home.job(plan.job_name))
    try:
        # Inside the `try`: Ctrl-C can arrive after sqlite has committed the row and before `add` returns.
        index.add(record)
        yield job
    # BaseException: Ctrl-C and SystemExit must undo the claim as well.
    except BaseException as error:
        job.end_with(error, stopped_on_interrupt=stopped_on_interrupt)
        if isinstance(error, OSError):
            raise job.preparation_error(error) from error
        raise


def process_lives(record: JobRecord, process: str | None) -> bool:
    """Report whether a process of the row still runs; False for None.

    A process of another machine, or of another container, cannot be seen from here. It counts as running, because a
    running job must not be written down as failed; `unseen` says so to the user.
    """
    return process is not None and may_live(process, record.place)


def client_lives(record: JobRecord) -> bool:
    """Report whether the process that submits the job still runs; False once the row names no client."""
    return process_lives(record, record.client)


def unseen(record: JobRecord) -> str | None:
    """Return where a job runs whose processes cannot be seen from here; None for all others."""
    if record.done or record.place is None or sees(record.place) is not None:
        return None
    if record.controller is None and record.client is None:
        return None
    node = record.place.partition(" ")[0]
    return (
        f"job {record.name} was started on {node}, another machine or container, whose processes cannot be seen from "
        "here: its state is the one that was last written. Look at it and stop it there"
    )


WATCHER_DIED = "the process that watched the job was killed, or its machine restarted"


def client_died(before: str) -> Failure:
    """Return the failure of a job whose client died during the submission; no program of the job has an exit code.

    >>> client_died("it had a controller").message
    'the Python process that was submitting the job died before it had a controller'
    """
    return Failure(exit_code=0, message=f"the Python process that was submitting the job died before {before}")


def settle(index: JobIndex, name: str, truth: Failure | Mapping[str, Any]) -> JobRecord:
    """Write what is true of a job into its row, and return the row.

    `truth` is the failure of a job that is lost, or the columns that changed. A row that says how the job ended
    never changes again, so two processes that settle one job agree.
    """
    if isinstance(truth, Failure):
        # Both writes are conditional in SQL, so a controller that ends the job at this moment wins.
        index.fail(name, truth)
        record = index.get(name)
        _note_state(index, name, asdict(record))
        start_report(str(index.path.parent), name)
        return record
    if truth.get("status") in TERMINAL and not index.get(name).done:
        # Before the row: whoever reads there that the job is over has all of its events.
        _note_state(index, name, truth)
    if truth and index.update(name, unless_done=True, **truth) and truth.get("status") in TERMINAL:
        start_report(str(index.path.parent), name)
    return index.get(name)


def change_state(index: JobIndex, name: str, columns: Mapping[str, Any], *, at: float | None = None) -> None:
    """Write a new state of a running job that has no controller of its own into its events and its row.

    `at` is when the job got it, None for now.
    """
    _note_state(index, name, {"ended": at, **columns})
    settle(index, name, columns)


def _note_state(index: JobIndex, name: str, columns: Mapping[str, Any]) -> None:
    folder = Home(index.path.parent).job(name)
    # Jobs of a service have no folder.
    if folder.logs.is_dir():
        JobEvents(folder.job_events).state(columns["secondary_status"], why_of(columns), at=columns.get("ended"))


def settle_end(index: JobIndex, record: JobRecord, columns: Mapping[str, Any]) -> JobRecord:
    """Return the row of a job that is over, and write it if the index can be written."""
    try:
        return settle(index, record.name, columns)
    except IndexBusyError:
        return replace(record, **columns)


def poll_until_done(describe: Callable[[str], JobRecord], name: str, *, seconds: float, pause: float) -> None:
    """Return when the job is over, or after `seconds`; `describe` is called every `pause` seconds."""
    deadline = time.monotonic() + seconds
    while not describe(name).done and time.monotonic() < deadline:
        time.sleep(pause)


def model_of(record: JobRecord) -> str:
    """Return the path or address of the packed model. Raises `InputError` while there is none."""
    if record.model is None and record.status in (COMPLETED, STOPPED):
        raise InputError(f"job {record.name} is {record.status}, and its script saved no model in SM_MODEL_DIR")
    if record.model is None:
        remedy = "the model is packed when a job completes"
        if record.done and record.backend != "sagemaker":
            remedy = f"if its script wrote one, `herringbone repack {record.name}` packs it"
        raise InputError(f"job {record.name} is {record.status} and has no model: {remedy}")
    return record.model
