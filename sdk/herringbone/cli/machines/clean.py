"""`herringbone clean`: remove containers and networks of jobs whose controller was killed."""

from __future__ import annotations

import json
import os

import click

from herringbone.cli.commands import json_option
from herringbone.system.user_paths import home_folder


@click.command()
@json_option("the removed names as one JSON array")
def command(as_json: bool) -> int:
    # Imported here, so that help starts without these modules.
    from herringbone.backends.docker.cleanup import collect_garbage
    from herringbone.backends.listing import all_jobs
    from herringbone.engine.locate import find_engine
    from herringbone.records.home import find_home

    # Listing the jobs marks those without a controller as lost, and removes their temporary folders.
    all_jobs()
    removed = collect_garbage(find_engine(os.environ, home_folder()), find_home())
    if as_json:
        print(json.dumps(removed))
    else:
        print("\n".join(f"removed {name}" for name in removed) or "nothing was left")
    return 0
