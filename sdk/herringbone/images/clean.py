"""Remove outdated images that `herringbone images build` made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from herringbone.engine.client import Engine
from herringbone.images.labels import CONTRACT, Label, repository

# Separates the tag of the image below from the hash of the requirements baked into it.
_BAKED = "-with-"


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
