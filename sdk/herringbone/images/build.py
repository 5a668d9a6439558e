"""Build an image from a recipe, unless the engine has the image of the same recipe already.

build(find_engine(os.environ, Path.home(), tls=True), make_recipe("pytorch"), print)
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from herringbone.engine.client import Engine, EngineRefusal
from herringbone.engine.docker_settings import docker_folder, login_header, proxy_variables, registry_login, registry_of
from herringbone.images.build_errors import explain
from herringbone.images.recipe import Recipe
from herringbone.system.user_paths import home_folder
from herringbone_contract.errors import EngineError, ImageError

_NOT_FOUND = 404
_LAYER_STATES = ("Pull complete", "Already exists")


@dataclass(frozen=True, slots=True)
class Image:
    """An image of the engine. `built` is False if it existed already; `size_bytes` counts its layers unpacked."""

    name: str
    id: str
    size_bytes: int
    built: bool


def build(engine: Engine, recipe: Recipe, say: Callable[[str], None]) -> Image:
    """Build an image, or return the image that the same recipe built before. `say` takes lines of progress.

    >>> build(engine, make_recipe("pytorch"), print).name        # doctest: +SKIP
    'herringbone/pytorch:2.13.0-cpu-7c5bdf14485a'

    Raises `ImageError`, with the remedy, for a base that cannot be pulled or does not fit, and for a failed build.
    """
    base = fetch_base(engine, recipe.base, say)

    def make() -> None:
        # Checked first, because the build itself would only say `exec format error` at its first command.
        check_architecture(base, recipe.base, engine.get("/version"))
        settings = {
            "t": name,
            "buildargs": {**proxy_variables(docker_folder(os.environ, home_folder())), **recipe.arguments},
            "labels": {"org.opencontainers.image.base.digest": base["Id"]},
            # Remove the containers of the build's steps, also when a step fails.
            "rm": True,
            "forcerm": True,
        }
        with tempfile.TemporaryFile() as context:
            recipe.context.write(context)
            steps = engine.stream("POST", "/build", settings, content=context)
            follow(steps, say, image_folder=root_folder(engine))

    name = recipe.tag(base["Id"])
    return made_once(engine, name, make)


def made_once(engine: Engine, name: str, make: Callable[[], None]) -> Image:
    """Return the image of a name, which `make` makes unless the engine has it."""
    existing = inspect(engine, name)
    if existing is None:
        make()
    image = existing or inspect(engine, name)
    if image is None:
        raise ImageError(
            f"{name} was made and has disappeared: another process removes images while this one makes them"
        )
    return Image(name, image["Id"], image["Size"], built=existing is None)


def described(engine: Engine, name: str) -> Mapping[str, Any]:
    """Return the engine's description of a local image. Raises `ImageError` where it has none of that name."""
    description = inspect(engine, name)
    if description is None:
        raise ImageError(f"the image {name} is not on this engine: docker pull {name}")
    return description


def inspect(engine: Engine, name: str) -> Mapping[str, Any] | None:
    """Return the engine's description of a local image, None if it has no image of that name."""
    try:
        description: Mapping[str, Any] = engine.get(f"/images/{name}/json")
    except EngineRefusal as error:
        if error.status == _NOT_FOUND:
            return None
        raise
    return description


def fetch_base(engine: Engine, name: str, say: Callable[[str], None]) -> Mapping[str, Any]:
    """Return the engine's description of a base image; pull the image if the engine does not have it."""
    base = inspect(engine, name)
    if base is not None:
        return base
    say(f"pulling {name}")
    repository, tag = split_name(name)
    login = registry_login(registry_of(name), docker_folder(os.environ, home_folder()))
    try:
        origin = {"fromImage": repository, "tag": tag}
        for step in checked(engine.stream("POST", "/images/create", origin, headers=login_header(login))):
            # Each layer reports every piece that arrives. Show its end, and the lines that belong to no layer.
            if step.get("status") in _LAYER_STATES or "id" not in step:
                say(" ".join(filter(None, [step.get("status"), step.get("id")])))
    except EngineError as error:
        raise ImageError(
            f"the base image {name} is not on this engine, and cannot be pulled: {error}. Load it here (docker load, "
            "docker import), or name another one with --base-image"
        ) from error
    base = inspect(engine, name)
    if base is None:
        raise ImageError(f"the base image {name} was pulled and is not there")
    return base


def check_architecture(base: Mapping[str, Any], name: str, version: Mapping[str, Any]) -> None:
    """Raise `ImageError` for a base that the engine's machine cannot run. Pure.

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


def follow(steps: Iterable[Mapping[str, Any]], say: Callable[[str], None], *, image_folder: str) -> None:
    """Pass on a build's output line by line. Raises `ImageError` if it fails; `image_folder` goes into the message."""
    lines: list[str] = []
    try:
        for step in checked(steps):
            for line in filter(str.strip, step.get("stream", "").splitlines()):
                lines.append(line)
                say(line)
    except EngineError as error:
        # Without lines, the engine could not even store the build's files, usually because its disk is full.
        raise ImageError(explain(lines, str(error), image_folder=image_folder)) from error


def checked(steps: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of an answer. Raises `EngineError` at its end if one of them tells of a failure.

    The answer begins with status 200 before the engine works, so a failure is a member of one of its objects.
    """
    error = None
    for step in steps:
        error = step.get("error", error)
        yield step
    if error is not None:
        raise EngineError(error)


def split_name(name: str) -> tuple[str, str | None]:
    """Split an image's name into repository and tag; a name with a digest has no tag. Pure.

    >>> split_name("registry:5000/base"), split_name("base:1"), split_name("base@sha256:00")
    (('registry:5000/base', 'latest'), ('base', '1'), ('base@sha256:00', None))
    """
    if "@" in name:
        return name, None
    # A colon before the last slash belongs to the registry's port.
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, "latest"
    return repository, tag


def root_folder(engine: Engine) -> str:
    """Return the folder, on the engine's own machine, that holds its images."""
    return str(engine.get("/info").get("DockerRootDir") or "the engine's own folder")
