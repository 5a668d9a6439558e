"""`python -m herringbone.trackers JOB DESTINATION`: export a job while it runs. Started by `fit`, never by hand.

DESTINATION is one of `track`, or the name of the files of one of `notify`.

Its output is the log of the export in the job's folder. No argument is a secret: credentials are in the environment.
"""

from __future__ import annotations

import signal
import sys

from herringbone.backends.registry import backend_of_job
from herringbone.plan.destinations import parse_destination
from herringbone.system.user_paths import current_folder
from herringbone.trackers.description import describe_job
from herringbone.trackers.export import follow_job, notices_of
from herringbone.trackers.place import JobRemovedError
from herringbone_contract.errors import HerringboneError, JobNotFoundError


def main(name: str, destination: str) -> int:
    """Export one job to one destination until the job is over; return the exit code."""
    # Ctrl-C is for the job, whose last metrics and end are exported as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        backend = backend_of_job(name)
        noticed = {to.file_name: to for to in notices_of(backend.describe(name).plan_dict)}
        to = noticed.get(destination) or parse_destination(destination, base=current_folder())
        follow_job(name, backend, lambda: describe_job(backend.describe(name), backend), to)
    # `herringbone rm` was faster.
    except (JobRemovedError, JobNotFoundError):
        return 0
    except HerringboneError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
