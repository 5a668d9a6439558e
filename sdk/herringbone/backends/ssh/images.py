"""The image of a job whose machines run containers: chosen once, and sent to the machines that lack it.

    this engine ---- one tar, piece by piece ----> visit ----> the machine's engine

An image is known by its id: a second run sends nothing. Where no engine runs here, the machines must have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING

from herringbone.backends.docker.image import Image, choose_image
from herringbone.backends.ssh.connection import Visit
from herringbone_contract.errors import EngineError, HostError, ImageError

if TYPE_CHECKING:
    from herringbone.engine.client import Engine
    from herringbone.planning.plan import JobPlan

_THREADS = 32
# An engine unpacks all that it was sent before it answers.
_PIECE_SECONDS = 600.0


def provide(
    plan: JobPlan,
    visits: Sequence[Visit],
    find: Callable[[], Engine],
    *,
    gpus: bool,
    say: Callable[[str], object],
) -> Image:
    """See to it that every machine has the job's image; return it.

    `find` finds this machine's engine; `gpus` says whether the machines have some; `say` gets what takes long. Raises
    `ImageError`, and `HostError` where a machine's engine does not answer or takes no image.
    """
    image, here = _chosen(plan, visits, find, gpus=gpus)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda visit: _ask(visit, image.id), visits)
        lacking = [visit for visit, there in zip(visits, found, strict=True) if there is None]
        if lacking and here is None:
            names = ", ".join(visit.machine for visit in lacking)
            raise ImageError(
                f"image_uri: {names} has no image {image.name!r} as the other machines have it, and no engine here can "
                f"send it; get it there (`docker pull {image.name}`)"
            )
        if lacking and here is not None:
            names = ", ".join(visit.machine for visit in lacking)
            size = here.get(f"/images/{image.id}/json")["Size"]
            say(f"image {image.name} ({size / 1e9:.1f} GB) is sent to {names}, once")
            over = Event()
            try:
                list(pool.map(lambda visit: _send(here, image, visit, over), lacking))
            except BaseException:
                # Ctrl-C, or a machine that fails: the pool waits for the others, which need not come to their end.
                over.set()
                raise
    return image


def _chosen(
    plan: JobPlan, visits: Sequence[Visit], find: Callable[[], Engine], *, gpus: bool
) -> tuple[Image, Engine | None]:
    """Return the image, and the engine that has it; None where only the machines do."""
    named = plan.arguments.get("image_uri")
    trouble: EngineError | ImageError
    try:
        engine = find()
        return choose_image(engine, plan, gpus=gpus), engine
    except (EngineError, ImageError) as error:
        trouble = error
    if named is None:
        raise trouble
    with suppress(StopIteration):
        return next(image for visit in visits if (image := _ask(visit, named)) is not None), None
    raise ImageError(f"image_uri: no machine has {named!r}, and there is none here to be sent: {trouble}")


def _ask(visit: Visit, name: str) -> Image | None:
    answer = visit.ask({"ask": "image", "name": name})
    return None if answer["id"] is None else Image(name, answer["id"], answer["is_ours"])


def _send(engine: Engine, image: Image, visit: Visit, over: Event) -> None:
    try:
        # One piece is on its way while the next one is read.
        under_way: int | None = None
        # By its name, which then is known there too.
        for piece in engine.save(image.name):
            if over.is_set():
                return
            number = visit.send({"ask": "load"}, piece)
            if under_way is not None:
                visit.answer_to(under_way, timeout=_PIECE_SECONDS)
            under_way = number
        if under_way is not None:
            visit.answer_to(under_way, timeout=_PIECE_SECONDS)
        visit.ask({"ask": "load", "wanted": image.id}, timeout=_PIECE_SECONDS)
    except HostError as error:
        raise HostError(f"image {image.name} could not be sent: {error}") from error
