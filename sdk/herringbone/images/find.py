"""Which local image runs a job that names none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from herringbone.engine.docker_py import asking
from herringbone.images.labels import CONTRACT, Label, repository


def find(engine: Any, *, framework: str | None, device: str, version: str | None = None) -> str | None:
    """Return the name of the newest local image that `herringbone images build` made for this, or None.

    >>> find(engine, framework="pytorch", device="cpu", version="2.13")     # doctest: +SKIP
    'herringbone/pytorch:2.13.0-cpu-1f0c9a7be4d2'

    Without a framework any will do. A `version` is matched part by part: "2.13" takes "2.13.0", not "2.1". An image
    derived from ours inherits its labels; the name tells them apart, so that nobody's own image is taken unasked.
    """
    with asking("which images it has"):
        listed = engine.images(filters=filters(framework=framework, device=device))
    return choose(listed, version)


def filters(*, framework: str | None, device: str) -> dict[str, list[str]]:
    """Return the Engine API's filters for the images that `choose` may choose from. Pure."""
    labels = [f"{Label.CONTRACT}={CONTRACT}", f"{Label.DEVICE}={device}"]
    if framework is not None:
        labels.append(f"{Label.FRAMEWORK}={framework}")
    return {"label": labels}


def choose(listed: Iterable[Mapping[str, Any]], version: str | None) -> str | None:
    """Choose among images as the engine lists them. Pure.

    >>> labels = {"dev.herringbone.framework": "pytorch", "dev.herringbone.version": "2.13.0"}
    >>> choose([{"Created": 7, "Labels": labels, "RepoTags": ["mine:1", "herringbone/pytorch:2.13.0-cpu-0a"]}], "2.13")
    'herringbone/pytorch:2.13.0-cpu-0a'
    """
    found = [
        (image["Created"], name)
        for image in listed
        if Label.REQUIREMENTS not in image["Labels"] and _is_version(image["Labels"].get(Label.VERSION, ""), version)
        if (name := _own_name(image)) is not None
    ]
    return max(found)[1] if found else None


def _own_name(image: Mapping[str, Any]) -> str | None:
    own = repository(image["Labels"].get(Label.FRAMEWORK, ""))
    names = [name for name in image["RepoTags"] or () if f"/{name}".rpartition(":")[0].endswith(f"/{own}")]
    # The short name before one with a registry in front.
    return min(names, key=len, default=None)


def _is_version(found: str, wanted: str | None) -> bool:
    return wanted is None or f"{found}.".startswith(f"{wanted}.")
