"""Chooses the image that runs a job's hosts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.engine.client import Engine, EngineRefusal
from herringbone.images.find import choose, filters
from herringbone.images.labels import CONTRACT, Label
from herringbone.plan.frameworks import IMAGES, image_version
from herringbone.show.console import Console
from herringbone.system.user_paths import home_folder
from herringbone_contract.errors import ImageError

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan

_NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Image:
    """An image of the engine; `is_ours` means that its `train` is our supervisor, which reads a private line.

    `digest` is the name by which any engine can pull it, `repository@sha256:...`; "" for an image that no registry has.
    `volumes` are the folders that it, or an image below it, declares as volumes.
    """

    name: str
    id: str
    is_ours: bool
    digest: str = ""
    volumes: tuple[str, ...] = ()


def choose_image(engine: Engine, plan: JobPlan, *, gpus: bool | None = None) -> Image:
    """Return the image that the job names, or the newest image for its framework and device.

    `gpus` says whether hosts have GPUs; None to take it from their type. Raises `ImageError` with the command that
    builds or pulls an image when there is none.
    """
    image_uri = plan.arguments.image_uri
    if gpus is None:
        gpus = any(host.instance_type == "local_gpu" for host in plan.hosts)
    name = image_uri or _newest(engine, plan, "cuda" if gpus else "cpu")
    image = find_image(engine, name)
    if image is None:
        raise ImageError(
            f"image_uri: the engine has no image {name!r}; pull it (`docker pull {name}`), or build one (`herringbone "
            "images build pytorch`) and leave image_uri out"
        )
    return image


def find_image(engine: Engine, name: str) -> Image | None:
    """Return the image that an engine has under a name or an id, None if it has none."""
    try:
        details = engine.get(f"/images/{name}/json")
    except EngineRefusal as error:
        if error.status != _NOT_FOUND:
            raise
        return None
    labels = details["Config"].get("Labels") or {}
    digests = details.get("RepoDigests") or [""]
    volumes = tuple(details["Config"].get("Volumes") or ())
    return Image(name, details["Id"], labels.get(Label.CONTRACT) == CONTRACT, digests[0], volumes)


def _newest(engine: Engine, plan: JobPlan, device: str) -> str:
    # Other estimators take an image of any framework.
    framework = IMAGES.get(plan.estimator)
    version = image_version(plan)
    listed = engine.get("/images/json", filters=filters(framework=framework, device=device))
    kind = framework or "pytorch"
    name = choose(listed, version)
    if name is None and (name := choose(listed, None)) is not None:
        # A project of AWS's names the version of AWS's image, and a script seldom needs that one.
        Console(sys.stderr).say(f"framework_version {version}: the engine has no such {kind} image; using {name}")
    if name is None:
        missing = f"{framework or 'framework'} image for {device}{f', version {version}' * (version is not None)}"
        gpu = " --device cuda" if device == "cuda" else ""
        raise ImageError(
            f"no image: the engine has no {missing}; build one (`herringbone images build {kind}{gpu}`), "
            "or name yours with image_uri"
        )
    return name


def with_requirements(image: Image, codes: Sequence[Path], environ: Mapping[str, str]) -> Image:
    """Return an image that contains the job's requirements, so that no host installs them.

    `codes` are the hosts' code folders. pip takes its own settings from `environ`.
    """
    requirements = codes[0] / "requirements.txt"
    if not requirements.is_file():
        return image
    # Imported here: most jobs bake nothing.
    from herringbone.engine.locate import find_engine
    from herringbone.images.bake import bake
    from herringbone.images.pip_settings import pip_files

    files = pip_files(environ)
    baked = bake(
        find_engine(environ, home_folder()),
        image.name,
        requirements,
        Console(sys.stderr).say,
        wheelhouse=files.wheels,
        ca_bundle=files.certificate,
    )
    for code in codes:
        # A host would install the file's packages again.
        (code / requirements.name).unlink()
    return replace(image, name=baked.name, id=baked.id, digest="")
