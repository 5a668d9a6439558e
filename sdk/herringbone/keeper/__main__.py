"""`python -m herringbone.keeper JOB < order`: keeps one job. Started by a backend, never by hand."""

from __future__ import annotations

import json
import os
import sys

from herringbone.keeper.keeper import Keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.keeper.order import Order


def main() -> None:
    text = sys.stdin.buffer.read()
    if not text:
        # The client found, while we started, that the job cannot be prepared.
        return
    order: Order = json.loads(text)
    keeper = Keeper(order)
    try:
        keeper.run()
    except BaseException as error:  # noqa: BLE001 - the last one who can write down that the job is over
        keeper.abandon()
        _write_down(order, error)
    # Nothing is left to tidy, and the interpreter's own farewell takes milliseconds.
    os._exit(0)


def _write_down(order: Order, error: BaseException) -> None:
    import time
    import traceback
    from pathlib import Path

    from herringbone.jobs import FAILED, JobIndex
    from herringbone_spec.failure import Failure

    traceback.print_exception(error)
    failure = Failure(exception=type(error).__name__, message=f"the job's keeper could not go on: {error}")
    JobIndex(Path(order["index"])).update(
        order["job"],
        unless_done=True,
        status=FAILED,
        secondary_status=FAILED,
        ended=time.time(),
        failure=failure.to_json(),
    )


if __name__ == "__main__":
    main()
