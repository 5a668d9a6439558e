"""A recipe becomes an image, once: an unchanged recipe finds the image that it made."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from herringbone.engine.docker_py import asking, missing
from herringbone.images.build_errors import explain
from herringbone.images.recipe import Recipe
from herringbone_contract.errors import EngineError, ImageError

_LAYER_STATES = ("Pull complete", "Already exists")


@dataclass(frozen=True, slots=True)
class Image:
    """An image here. `built` is false where it was there already; `size_bytes` counts its layers unpacked."""

    name: str
    id: str
    size_bytes: int
    built: bool


def build(engine: Any, recipe: Recipe, say: Callable[[str], None]) -> Image:
    """Build an image, or return the one that the same recipe gave before. `say` takes lines of progress.

    >>> build(connect(), make_recipe("pytorch"), print).name        # doctest: +SKIP
    'herringbone/pytorch:2.13.0-cpu-7c5bdf14485a'

    Raises `ImageError` for a base that is not to be had or does not fit, and for a build that fails, with what to do.
    """
    base = fetch_base(engine, recipe.base, say)
    name = recipe.tag(base["Id"])
    found = inspect(engine, name)
    if found is not None:
        return Image(name, found["Id"], found["Size"], built=False)
    check_architecture(base, recipe.base, engine.version())
    place = root_folder(engine)
    try:
        with tempfile.TemporaryFile() as context, asking(f"to build {name}"):
            recipe.context.write(context)
            context.seek(0)
            steps = engine.build(
                fileobj=context,
                custom_context=True,
                tag=name,
                buildargs=recipe.arguments,
                labels={"org.opencontainers.image.base.digest": base["Id"]},
                rm=True,
                forcerm=True,
                decode=True,
            )
            follow(steps, say, place=place)
    except EngineError as error:
        # It did not even take in what it was to build from: for want of room, as a rule.
        raise ImageError(explain([], str(error), place=place)) from error
    built = inspect(engine, name)
    if built is None:
        raise ImageError(f"{name} was built and is gone: something here removes images while others are made")
    return Image(name, built["Id"], built["Size"], built=True)


def inspect(engine: Any, name: str) -> Mapping[str, Any] | None:
    """Return what the engine knows of a local image, None where it has none of that name."""
    with asking(f"about the image {name}"), missing():
        found: Mapping[str, Any] = engine.inspect_image(name)
        return found
    return None


def fetch_base(engine: Any, name: str, say: Callable[[str], None]) -> Mapping[str, Any]:
    """Return what the engine knows of a base image; one that is not here is pulled."""
    found = inspect(engine, name)
    if found is not None:
        return found
    say(f"pulling {name}")
    repository, tag = split_name(name)
    try:
        with asking(f"to pull {name}"):
            error = None
            for step in engine.pull(repository, tag=tag, stream=True, decode=True):
                error = step.get("error", error)
                if step.get("status") in _LAYER_STATES or "id" not in step:
                    say(" ".join(filter(None, [step.get("status"), step.get("id")])))
            if error is not None:
                raise EngineError(error)
    except EngineError as error:
        raise ImageError(
            f"the base image {name} is not on this engine, and cannot be pulled: {error}. Load it here (docker load, "
            "docker import), or name another one with --base-image"
        ) from error
    found = inspect(engine, name)
    if found is None:
        raise ImageError(f"the base image {name} was pulled and is not there")
    return found


def check_architecture(base: Mapping[str, Any], name: str, version: Mapping[str, Any]) -> None:
    """Raise `ImageError` for a base that this engine's machine cannot run. Pure.

    >>> check_architecture({"Os": "linux", "Architecture": "arm64"}, "base", {"Os": "linux", "Arch": "amd64"})
    Traceback (most recent call last):
    herringbone_contract.errors.ImageError: the base image base is for linux/arm64, this engine runs linux/amd64: ...
    """
    is_for = f"{base['Os']}/{base['Architecture']}"
    runs = f"{version['Os']}/{version['Arch']}"
    if is_for != runs:
        raise ImageError(
            f"the base image {name} is for {is_for}, this engine runs {runs}: pull it for {runs} "
            f"(docker pull --platform {runs} {name}), or name another one with --base-image"
        )


def follow(steps: Iterable[Mapping[str, Any]], say: Callable[[str], None], *, place: str) -> None:
    """Pass on a build's output line by line; raise `ImageError` when it fails. `place` is where images are kept."""
    lines: list[str] = []
    error = None
    for step in steps:
        for line in step.get("stream", "").splitlines():
            if line.strip():
                lines.append(line)
                say(line)
        error = step.get("error", error)
    # Raised when all is read: an answer that is left half read holds its connection.
    if error is not None:
        raise ImageError(explain(lines, error, place=place))


def split_name(name: str) -> tuple[str, str | None]:
    """Part an image's name from its tag or digest. Pure.

    >>> split_name("registry:5000/base"), split_name("base:1"), split_name("base@sha256:00")
    (('registry:5000/base', 'latest'), ('base', '1'), ('base@sha256:00', None))
    """
    if "@" in name:
        return name, None
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, "latest"
    return repository, tag


def root_folder(engine: Any) -> str:
    """Return where the engine keeps its images, on its own machine."""
    return str(engine.info().get("DockerRootDir") or "the engine's own folder")
