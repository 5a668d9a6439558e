"""`herringbone describe`: show everything that is known about a job."""

from __future__ import annotations

import argparse
import json

import yaml

from herringbone.jobs.job import attach


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("describe", help="show a job under SageMaker's key names")
    parser.add_argument("name", help="the job's name")
    parser.add_argument("--json", action="store_true", help="as JSON; else as YAML")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    described = attach(args.name).describe()
    # Unsorted: `describe` puts the name and the status first.
    print(json.dumps(described) if args.json else yaml.safe_dump(described, sort_keys=False, width=120).rstrip())
    return 0
