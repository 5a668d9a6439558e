"""`herringbone clean`: remove containers and networks of jobs whose controller was killed."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from herringbone.jobs.listing import all_jobs


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("clean", help="remove containers and networks of jobs whose controller was killed")
    parser.add_argument("--json", action="store_true", help="the removed names as one JSON array")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    # Imported here, so that the other verbs start without these modules.
    from herringbone.backends.docker.cleanup import collect_garbage
    from herringbone.engine.locate import find_engine
    from herringbone.jobs.home import find_home

    # Listing the jobs marks those without a controller as lost, and removes their temporary folders.
    all_jobs()
    removed = collect_garbage(find_engine(os.environ, Path.home()), find_home())
    if args.json:
        print(json.dumps(removed))
    else:
        print("\n".join(f"removed {name}" for name in removed) or "nothing was left")
    return 0
