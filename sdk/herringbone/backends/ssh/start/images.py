"""Bring the image of a job to the machines that lack it.

    the client's engine ---- one tar, in pieces ----> connection ----> the machine's engine

An image is known by its id, so a second run sends nothing. Without an engine here, the machines must have the image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING

from herringbone.backends.docker.image import Image, choose_image, find_image
from herringbone.backends.docker.review import check_image
from herringbone.backends.ssh.transport.connection import Connection
from herringbone_contract.errors import EngineError, HostError, ImageError

if TYPE_CHECKING:
    from herringbone.engine.client import Engine
    from herringbone.plan.plan import JobPlan

_THREADS = 32
# An engine answers only after it has unpacked everything that it was sent.
_PIECE_SECONDS = 600.0


def provide_image(
    plan: JobPlan,
    connections: Sequence[Connection],
    find: Callable[[], Engine],
    *,
    gpus: bool,
    say: Callable[[str], object],
) -> Image:
    """Make sure that every machine has the job's image; return the image.

    `find` finds this machine's engine, `gpus` says whether the machines have GPUs, and `say` announces an upload.
    Raises `ImageError`, or `HostError` when a machine's engine does not answer or does not load the image.
    """
    image, engine = _choose(plan, connections, find, gpus=gpus)
    with ThreadPoolExecutor(_THREADS) as pool:
        present = pool.map(lambda connection: _find_on(connection, image.id), connections)
        lacking = [connection for connection, its_image in zip(connections, present, strict=True) if its_image is None]
        names = ", ".join(connection.machine for connection in lacking)
        if lacking and engine is None:
            raise ImageError(
                f"image_uri: {names} does not have the image {image.name!r} that the other machines have, and no "
                f"engine here can send it; load it there (`docker pull {image.name}`)"
            )
        if lacking and engine is not None:
            size = engine.get(f"/images/{image.id}/json")["Size"]
            say(f"sending image {image.name} ({size / 1e9:.1f} GB) to {names}, once")
            canceled = Event()
            try:
                list(pool.map(lambda connection: _send(engine, image, connection, canceled), lacking))
            except BaseException:
                # After Ctrl-C or a failure, leaving the pool waits for its threads. This makes the others return.
                canceled.set()
                raise
    return image


def check_image_here(plan: JobPlan, find: Callable[[], Engine]) -> None:
    """Raise `UnsupportedError` for a setting that the job's image cannot serve, if the engine here has the image.

    Without an engine or the image, the submission checks the image of the machines.
    """
    with suppress(EngineError):
        image = find_image(find(), str(plan.arguments.image_uri))
        if image is not None:
            check_image(plan, image, "ssh")


def _choose(
    plan: JobPlan, connections: Sequence[Connection], find: Callable[[], Engine], *, gpus: bool
) -> tuple[Image, Engine | None]:
    """Return the image and the engine here that has it, None when only machines have it."""
    image_uri = plan.arguments.image_uri
    trouble: EngineError | ImageError
    try:
        engine = find()
        return choose_image(engine, plan, gpus=gpus), engine
    except (EngineError, ImageError) as error:
        trouble = error
    if image_uri is None:
        raise trouble
    with suppress(StopIteration):
        return next(image for machine in connections if (image := _find_on(machine, image_uri)) is not None), None
    raise ImageError(f"image_uri: no machine has {image_uri!r}, and this machine cannot send it: {trouble}")


def _find_on(connection: Connection, name: str) -> Image | None:
    answer = connection.ask({"ask": "image", "name": name})
    return None if answer["id"] is None else Image(name, answer["id"], answer["is_ours"])


def _send(engine: Engine, image: Image, connection: Connection, canceled: Event) -> None:
    try:
        # One piece is on its way while the engine reads the next one; more would fill the memory with a large image.
        in_flight: int | None = None
        # By name, so that the machine's engine knows the name, too.
        for piece in engine.save(image.name):
            if canceled.is_set():
                return
            number = connection.send({"ask": "load"}, piece)
            if in_flight is not None:
                connection.answer_to(in_flight, timeout=_PIECE_SECONDS)
            in_flight = number
        if in_flight is not None:
            connection.answer_to(in_flight, timeout=_PIECE_SECONDS)
        connection.ask({"ask": "load", "wanted": image.id}, timeout=_PIECE_SECONDS)
    except HostError as error:
        raise HostError(f"image {image.name} could not be sent: {error}") from error
