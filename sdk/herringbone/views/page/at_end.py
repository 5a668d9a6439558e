"""`python -m herringbone.views.page.at_end JOB`: write the report of a job that is over.

`controller.report` starts it.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Write the report of the job that the command line names."""
    # The controller's descriptors lead to its containers, which end when nobody holds them any more.
    os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), 1 << 16))
    # Whatever runs on this machine matters more.
    os.nice(19)
    from herringbone.backends.registry import backend_of_job
    from herringbone.views.page.report import write_report

    name = sys.argv[1]
    backend = backend_of_job(name)
    if backend.describe(name).done:
        write_report(name, backend.home.job(name).report, backend)


if __name__ == "__main__":
    main()
