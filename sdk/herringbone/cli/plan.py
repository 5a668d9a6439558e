"""`herringbone plan`: show the plan of the job that `run` would start."""

from __future__ import annotations

import argparse
import json

from herringbone.cli.request import EPILOG, add_arguments, read_request


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "plan",
        help="show what run would do, and start nothing",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the plan as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    estimator, inputs = read_request(args)
    plan = estimator.plan(inputs, args.job_name)
    print(json.dumps(plan.to_dict()) if args.json else plan)
    return 0
