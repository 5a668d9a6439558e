"""Find the local image for a job that names none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from herringbone.engine.client import Engine
from herringbone.images.labels import CONTRACT, Label, repository


def find(engine: Engine, *, framework: str | None, device: str, version: str | None = None) -> str | None:
    """Return the name of the newest local image of a framework and device that we built, None without one.

    >>> find(engine, framework="pytorch", device="cpu", version="2.13")     # doctest: +SKIP
    'herringbone/pytorch:2.13.0-cpu-1f0c9a7be4d2'

    `framework=None` matches any framework. A `version` is compared part by part: "2.13" matches "2.13.0", not "2.1". An
    image derived from ours inherits its labels, so the name decides: a user's own image is never taken by itself.
    """
    return choose(engine.get("/images/json", filters=filters(framework=framework, device=device)), version)


def filters(*, framework: str | None, device: str) -> dict[str, list[str]]:
    """Return the Engine API's filters for the images that `choose` may choose from. Pure."""
    labels = [f"{Label.CONTRACT}={CONTRACT}", f"{Label.DEVICE}={device}"]
    if framework is not None:
        labels.append(f"{Label.FRAMEWORK}={framework}")
    return {"label": labels}


def choose(listed: Iterable[Mapping[str, Any]], version: str | None) -> str | None:
    """Return the name of the newest matching image, from images as the engine lists them. Pure.

    >>> labels = {"dev.herringbone.framework": "pytorch", "dev.herringbone.version": "2.13.0"}
    >>> choose([{"Created": 7, "Labels": labels, "RepoTags": ["mine:1", "herringbone/pytorch:2.13.0-cpu-0a"]}], "2.13")
    'herringbone/pytorch:2.13.0-cpu-0a'
    """
    candidates = [
        (image["Created"], name)
        for image in listed
        if Label.REQUIREMENTS not in image["Labels"] and _is_version(image["Labels"].get(Label.VERSION, ""), version)
        if (name := _own_name(image)) is not None
    ]
    # The engine gives whole seconds; the name decides between equal ones, so that the choice is stable.
    return max(candidates)[1] if candidates else None


def _own_name(image: Mapping[str, Any]) -> str | None:
    expected = repository(image["Labels"].get(Label.FRAMEWORK, ""))
    # The slash in front makes `/herringbone/pytorch` match after a registry, and not in `my-herringbone/pytorch`.
    names = [name for name in image["RepoTags"] or () if f"/{name}".rpartition(":")[0].endswith(f"/{expected}")]
    # Prefer the short name to the same name with a registry in front.
    return min(names, key=len, default=None)


def _is_version(version: str, requested: str | None) -> bool:
    # With a dot at both ends, 2.1 matches 2.1.0 and does not match 2.13.0.
    return requested is None or f"{version}.".startswith(f"{requested}.")
