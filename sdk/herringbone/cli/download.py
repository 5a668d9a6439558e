"""`herringbone download`: unpack a job's model."""

from __future__ import annotations

import argparse
import json

from herringbone.jobs.job import attach


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("download", help="unpack a job's model into a new folder")
    parser.add_argument("name", help="the job's name")
    parser.add_argument("into", nargs="?", metavar="FOLDER", help="the folder to create (default: NAME-model)")
    parser.add_argument("--json", action="store_true", help="the folder as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    folder = attach(args.name).download_model(args.into or f"{args.name}-model")
    print(json.dumps({"folder": str(folder)}) if args.json else folder)
    return 0
