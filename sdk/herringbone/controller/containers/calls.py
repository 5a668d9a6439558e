"""Requests to the engine that start and remove the containers of a job."""

from __future__ import annotations

from herringbone.engine.client import Engine, EngineRefusal, hijack, read_head, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

NOT_FOUND, CONFLICT = 404, 409


def start_container(engine: Engine, container: str, stream: socket, ending: socket, line: bytes) -> None:
    """Start a container whose output arrives on `stream` and whose end arrives on `ending`; `line` is its first input.

    The order matters: attach before the start, so that no byte of output is lost, and wait for the end before there
    can be one.
    """
    path = f"/containers/{container}"
    hijack(stream, f"{path}/attach", {"stream": True, "stdin": True, "stdout": True, "stderr": True})
    # The supervisor reads this line before anything else, and the engine keeps it until it does.
    stream.sendall(line)
    send(ending, "POST", f"{path}/wait", {"condition": "next-exit"})
    # The head arrives at once and means that the engine watches the container; the body arrives at the end.
    read_head(ending)
    engine.post(f"{path}/start")


def remove_container(engine: Engine, container: str) -> None:
    """Kill and remove a container; a container that is gone, or that another process is removing, is no error."""
    try:
        engine.delete(f"/containers/{container}", force=True, v=True)
    except EngineRefusal as error:
        if error.status not in (NOT_FOUND, CONFLICT):
            raise


def remove_network(engine: Engine, network: str) -> None:
    """Remove a network; a network that is gone is no error."""
    try:
        engine.delete(f"/networks/{network}")
    except EngineRefusal as error:
        if error.status != NOT_FOUND:
            raise
