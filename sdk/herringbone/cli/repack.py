"""`herringbone repack`: pack the model of a job whose controller could not."""

from __future__ import annotations

import argparse
import json
import sys

from herringbone.jobs.console import Console
from herringbone.jobs.job import attach


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("repack", help="pack the model of a job that is over and has no archive")
    parser.add_argument("name", help="the job's name")
    parser.add_argument("--json", action="store_true", help="the model's path as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    model = attach(args.name).repack(Console(sys.stderr).say)
    print(json.dumps({"model": str(model)}) if args.json else model)
    return 0
