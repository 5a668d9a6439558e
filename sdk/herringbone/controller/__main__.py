"""`python -m herringbone.controller JOB < order`: keeps one job. Started by a backend, never by hand."""

from __future__ import annotations

import json
import os
import sys

from herringbone.controller.controller import Controller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.controller.config import Order
    from herringbone.controller.hosts import Site


def main() -> None:
    text = sys.stdin.buffer.read()
    if not text:
        # The client found, while we started, that the job cannot be prepared.
        return
    order: Order = json.loads(text)
    site, failed = None, True
    try:
        site = site_of(order)
        failed = Controller(order, site).run()
    except BaseException as error:  # noqa: BLE001 - the last one who can write down that the job is over
        if site is not None:
            site.abandon()
        from herringbone.controller import record

        record.broken(order, error)
    # Nothing is left to tidy, and the interpreter's own farewell takes milliseconds.
    os._exit(int(failed))


def site_of(order: Order) -> Site:
    """Return what the job's hosts are; each kind is imported by the jobs that have it."""
    if order["containers"] is not None:
        from herringbone.controller.containers import Containers

        return Containers(order, order["containers"])
    if order["steps"] is not None:
        from herringbone.controller.slurm_steps import Steps

        return Steps(order, order["steps"])
    from herringbone.controller.processes import Processes

    assert order["processes"] is not None
    return Processes(order, order["processes"])


if __name__ == "__main__":
    main()
