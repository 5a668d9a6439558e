"""Which image runs a job's hosts, and what kind of image it is."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.engine.client import Engine, EngineRefusal
from herringbone.images.find import choose, filters
from herringbone.images.labels import CONTRACT, Label
from herringbone.jobs.console import Console
from herringbone_contract.errors import ImageError

if TYPE_CHECKING:
    from herringbone.planning.plan import JobPlan

_NOT_FOUND = 404
# The estimator's class -> the framework whose image it wants; None takes any.
_FRAMEWORKS = {"PyTorch": "pytorch", "TensorFlow": "tensorflow", "MXNet": "mxnet"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image of the engine's. `is_ours`: its `train` is our supervisor, which takes a private line."""

    name: str
    id: str
    is_ours: bool


def choose_image(engine: Engine, plan: JobPlan, *, gpus: bool | None = None) -> Image:
    """Return the image that the job names, or the newest that was built for its framework and device.

    `gpus` says whether hosts have some; None where their type says it. Raises `ImageError` when there is no image, with
    the command that makes or fetches one.
    """
    named = plan.arguments.get("image_uri")
    if gpus is None:
        gpus = any(host.instance_type == "local_gpu" for host in plan.hosts)
    name = named or _newest(engine, plan, "cuda" if gpus else "cpu")
    found = find_image(engine, name)
    if found is None:
        raise ImageError(
            f"image_uri: the engine has no image {name!r}; get it (`docker pull {name}`), or build one (`herringbone "
            "images build pytorch`) and leave image_uri out"
        )
    return found


def find_image(engine: Engine, name: str) -> Image | None:
    """Return the image that an engine has under a name or an id, None where it has none."""
    try:
        found = engine.get(f"/images/{name}/json")
    except EngineRefusal as error:
        if error.status != _NOT_FOUND:
            raise
        return None
    labels = found["Config"].get("Labels") or {}
    return Image(name, found["Id"], labels.get(Label.CONTRACT) == CONTRACT)


def _newest(engine: Engine, plan: JobPlan, device: str) -> str:
    framework = _FRAMEWORKS.get(plan.estimator)
    version = plan.options.framework_version
    found = choose(engine.get("/images/json", filters=filters(framework=framework, device=device)), version)
    if found is None:
        kind = framework or "pytorch"
        what = f"{framework or 'framework'} image for {device}{f', version {version}' * (version is not None)}"
        gpu = " --device cuda" if device == "cuda" else ""
        raise ImageError(
            f"no image: the engine has no {what}; build one (`herringbone images build {kind}{gpu}`), "
            "or name yours with image_uri"
        )
    return found


def with_requirements(image: Image, codes: Sequence[Path], environ: Mapping[str, str]) -> Image:
    """Return an image with the job's requirements in it, made once; no host then installs them again.

    `codes` are the hosts' code folders. Where pip finds what it needs is pip's own setting, in the user's environment.
    """
    listed = codes[0] / "requirements.txt"
    if not listed.is_file():
        return image
    from herringbone.engine.locate import find_engine
    from herringbone.images.bake import bake

    found = bake(
        find_engine(environ, Path.home()),
        image.name,
        listed,
        Console(sys.stderr).say,
        wheelhouse=_existing(environ, "PIP_FIND_LINKS"),
        ca_bundle=_existing(environ, "PIP_CERT"),
    )
    for code in codes:
        (code / listed.name).unlink()
    return Image(found.name, found.id, is_ours=True)


def _existing(environ: Mapping[str, str], variable: str) -> Path | None:
    given = environ.get(variable)
    return Path(given) if given and Path(given).exists() else None
