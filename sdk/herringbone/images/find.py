"""The images that `herringbone images build` made: find the one for a job that names none, remove outdated ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from herringbone.engine.client import Engine
from herringbone.images.labels import CONTRACT, Label, repository

# Separates the tag of the image below from the hash of the requirements baked into it.
_BAKED = "-with-"


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


def clean(engine: Engine, *, keep: int = 1) -> list[str]:
    """Remove outdated images and return their names.

    >>> clean(engine, keep=2)                            # doctest: +SKIP
    ['herringbone/pytorch:2.13.0-cpu-0a']

    The newest `keep` images of each framework, version and device stay, with the images of requirements on top of
    them. An image that a container uses stays, and so does an image with a name of the user's own.
    """
    listed = engine.get("/images/json", filters={"label": [f"{Label.CONTRACT}={CONTRACT}"]})
    used = {container["ImageID"] for container in engine.get("/containers/json", all=True)}
    names = outdated(listed, used, keep)
    for name in names:
        # Without `force`: the engine then refuses to remove an image that got a container since the listing.
        engine.delete(f"/images/{name}")
    return names


def outdated(listed: Iterable[Mapping[str, Any]], used: Collection[str], keep: int) -> list[str]:
    """Return the names to remove, from images as the engine lists them; `used` are ids of images. Pure.

    >>> labels = {"dev.herringbone.framework": "pytorch"}
    >>> old = {"Id": "1", "Created": 1, "Labels": labels, "RepoTags": ["herringbone/pytorch:a"]}
    >>> new = {"Id": "2", "Created": 2, "Labels": labels, "RepoTags": ["herringbone/pytorch:b"]}
    >>> outdated([old, new], (), 1)
    ['herringbone/pytorch:a']

    Images with requirements come first: the engine refuses to remove an image below another one.
    """
    ours = [image for image in listed if _is_ours(image)]
    plain = [image for image in ours if Label.REQUIREMENTS not in image["Labels"]]
    kinds: dict[tuple[str | None, ...], list[Mapping[str, Any]]] = {}
    for image in sorted(plain, key=lambda image: -int(image["Created"])):
        kind = tuple(image["Labels"].get(label) for label in (Label.FRAMEWORK, Label.VERSION, Label.DEVICE))
        kinds.setdefault(kind, []).append(image)
    old = [image for kind in kinds.values() for image in kind[keep:] if image["Id"] not in used]
    bases = [name for image in old for name in image["RepoTags"]]
    baked = [image for image in ours if Label.REQUIREMENTS in image["Labels"] and image["Id"] not in used]
    # An image with requirements is outdated when the image below it is; the name tells which one that is.
    on_top = [name for image in baked for name in image["RepoTags"] if name.partition(_BAKED)[0] in bases]
    return sorted(on_top) + sorted(bases)


def _is_ours(image: Mapping[str, Any]) -> bool:
    """Return True if the image has names, all of them given by `herringbone images build`."""
    prefix = f"{repository(image['Labels'].get(Label.FRAMEWORK, ''))}:"
    names = image["RepoTags"] or ()
    return bool(names) and all(name.startswith(prefix) for name in names)
