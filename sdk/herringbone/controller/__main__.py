"""`python -m herringbone.controller JOB < config`: runs one job's life. Started by a backend, never by hand."""

from __future__ import annotations

import json
import os
import sys

from herringbone.controller.controller import Controller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.controller.hosts import Site
    from herringbone.protocols.controller_config import ControllerConfig


def main() -> None:
    text = sys.stdin.buffer.read()
    if not text:
        # The client could not prepare the job, or died before it wrote the config: there is nothing to run.
        return
    config = parse_config(text)
    site, failed = None, True
    try:
        site = site_of(config)
        failed = Controller(config, site).run()
    except BaseException as error:  # noqa: BLE001 - no other process would record that the job is over
        if site is not None:
            site.abandon()
        from herringbone.controller import record

        record.broken(config, error)
    if config["index"] is not None:
        from herringbone.controller.report import start_report

        start_report(os.path.dirname(config["index"]), config["job"])  # noqa: PTH120 - no pathlib here
    # Nothing is left to close, and the interpreter's own shutdown takes milliseconds.
    os._exit(int(failed))


def parse_config(text: bytes) -> ControllerConfig:
    """Read the config of a job, which an earlier release may have written: a job of Slurm waits for days.

    >>> parse_config(b'{"job": "digits-1"}')["claim"] is None
    True
    """
    config: ControllerConfig = json.loads(text)
    config.setdefault("claim", None)
    config.setdefault("budget", None)
    config.setdefault("spent", 0.0)
    config.setdefault("s3", None)
    config.setdefault("pipes", None)
    config.setdefault("permit", None)
    config.setdefault("sizes", [])
    if (processes := config.get("processes")) is not None:
        processes.setdefault("holders", False)
    return config


def site_of(config: ControllerConfig) -> Site:
    """Return the site of the job's hosts; only the module of that kind of host is imported."""
    if config["containers"] is not None:
        from herringbone.controller.containers.site import Containers

        return Containers(config, config["containers"])
    if config["steps"] is not None:
        from herringbone.controller.slurm_steps import Steps

        return Steps(config, config["steps"])
    from herringbone.controller.processes import Processes

    assert config["processes"] is not None
    return Processes(config, config["processes"])


if __name__ == "__main__":
    main()
