"""Run a command in a host of this machine: `python -m herringbone.backends.ssh.agent.enter WORK JOB HOST [COMMAND]`.

ssh starts it with a terminal, or without one; a host that is a container gets the command through the engine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from herringbone.backends.ssh.agent.jobs import backend_named
from herringbone.records.home import Home
from herringbone.records.index import JobIndex
from herringbone_contract.errors import HerringboneError


def main() -> int:
    """Run the command and return its exit code."""
    work, job, host, *command = sys.argv[1:]
    home = Home(Path(work))
    try:
        record = JobIndex(home.index).get(job)
        return backend_named(home, record.backend).access(job, host).run(command)
    except HerringboneError as error:
        print(f"herringbone: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
