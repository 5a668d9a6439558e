"""`herringbone stop`: stop a job."""

from __future__ import annotations

import argparse
import json
import math

from herringbone.jobs.job import attach
from herringbone_contract.errors import OptionError


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("stop", help="stop a job: SIGTERM to every rank, SIGKILL after the grace")
    parser.add_argument("name", help="the job's name")
    parser.add_argument(
        "--grace", type=float, metavar="SECONDS", help="how long the ranks may take to end (default: 110)"
    )
    parser.add_argument("--wait", action="store_true", help="return when the job is over")
    parser.add_argument("--json", action="store_true", help="the job's description as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.grace is not None and not 0 <= args.grace < math.inf:
        raise OptionError(f"--grace {args.grace}: give a number of seconds, 0 or more")
    job = attach(args.name)
    # Without --grace this is None: SageMaker refuses any value, other backends have a default.
    job.stop(args.grace)
    if args.wait:
        job.wait()
    print(json.dumps(job.describe()) if args.json else f"job {job.name}: {job.status}")
    return 0
