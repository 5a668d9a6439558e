"""`herringbone debug`: attach a debugger to a rank of a running job."""

from __future__ import annotations

import json
import sys

import click

from herringbone.cli.commands import json_option
from herringbone.cli.names import job_name


@click.command()
@job_name
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="the rank to debug")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="the port of this machine that leads to the rank (default: the rank's own number if that is free)",
)
@json_option("the editor's configuration as JSON")
def command(name: str, rank: int, port: int | None, as_json: bool) -> int:
    """Attach a debugger to a rank of a running job, and print the editor's configuration.

    debugpy listens on the loopback interface of the rank's host. If the host is another machine or a container, this
    command is the way there, and runs until Ctrl-C. The job goes on in any case.
    """
    from herringbone.access.debugger import attach_debugger, instructions, launch_configuration, source_folder
    from herringbone.access.requests import way_into
    from herringbone.access.tunnel import Tunnel
    from herringbone.backends.registry import backend_of_job

    backend = backend_of_job(name)
    debuggee = attach_debugger(backend, name, rank)
    source = source_folder(backend.describe(name).plan_dict)

    def show(local: int) -> None:
        if as_json:
            print(json.dumps(launch_configuration(debuggee, port=local, source=source)), flush=True)
        else:
            print(instructions(debuggee, port=local, source=source), flush=True)

    _, access = way_into(backend, name, debuggee.host)
    if access.is_here and port in (None, debuggee.port):
        show(debuggee.port)
        return 0
    with Tunnel(access, debuggee.port, wanted=port) as tunnel:
        show(tunnel.port)
        print(f"relaying port {tunnel.port} of this machine to {debuggee.host}; Ctrl-C ends that", file=sys.stderr)
        try:
            tunnel.serve(lambda text: print(f"herringbone: {text}", file=sys.stderr))
        except KeyboardInterrupt:
            return 0
