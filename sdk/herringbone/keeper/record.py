"""What a keeper writes into the index while the job runs. Imported when it is first needed: sqlite takes its time."""

from __future__ import annotations

import shutil
import time
import traceback
from pathlib import Path

from herringbone.jobs import FAILED, STOPPING, TRAINING, JobIndex
from herringbone.keeper.order import Order
from herringbone_spec.failure import Failure


def training(order: Order) -> None:
    """The hosts have been started."""
    JobIndex(Path(order["index"])).update(
        order["job"], unless_done=True, secondary_status=TRAINING, started=time.time()
    )


def stopping(order: Order) -> float | None:
    """Somebody asked for a stop; return the grace that he wished, in seconds, None for the job's own."""
    index = JobIndex(Path(order["index"]))
    index.update(order["job"], unless_done=True, status=STOPPING, secondary_status=STOPPING)
    return index.get(order["job"]).stop_grace


def broken(order: Order, error: BaseException) -> None:
    """The keeper itself could not go on."""
    traceback.print_exception(error)
    shutil.rmtree(order["run_folder"], ignore_errors=True)
    failure = Failure(exception=type(error).__name__, message=f"the job's keeper could not go on: {error}")
    JobIndex(Path(order["index"])).update(
        order["job"],
        unless_done=True,
        status=FAILED,
        secondary_status=FAILED,
        ended=time.time(),
        failure=failure.to_json(),
    )
