"""Which of the images that `images build` made are outdated, and their removal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from herringbone.engine.docker_py import asking
from herringbone.images.labels import CONTRACT, Label, repository

# Between the tag of the image that requirements were baked into, and their own part.
_BAKED = "-with-"


def clean(engine: Any, *, keep: int = 1) -> list[str]:
    """Remove outdated images and return their names.

    >>> clean(connect(), keep=2)                         # doctest: +SKIP
    ['herringbone/pytorch:2.13.0-cpu-0a']

    Of each framework, version and device the newest `keep` stay, with the images of requirements on top of them. So
    does an image that a container was made from, or that somebody gave another name.
    """
    with asking("which images and containers it has"):
        listed = engine.images(filters={"label": f"{Label.CONTRACT}={CONTRACT}"})
        used = {container["ImageID"] for container in engine.containers(all=True)}
    names = outdated(listed, used, keep)
    for name in names:
        with asking(f"to remove the image {name}"):
            engine.remove_image(name)
    return names


def outdated(listed: Iterable[Mapping[str, Any]], used: Collection[str], keep: int) -> list[str]:
    """Return the names to remove from among images as the engine lists them; `used` are ids. Pure.

    >>> labels = {"dev.herringbone.framework": "pytorch"}
    >>> old = {"Id": "1", "Created": 1, "Labels": labels, "RepoTags": ["herringbone/pytorch:a"]}
    >>> new = {"Id": "2", "Created": 2, "Labels": labels, "RepoTags": ["herringbone/pytorch:b"]}
    >>> outdated([old, new], (), 1)
    ['herringbone/pytorch:a']

    Those with requirements come before what they stand on.
    """
    ours = [image for image in listed if _is_ours(image)]
    plain = [image for image in ours if Label.REQUIREMENTS not in image["Labels"]]
    kinds: dict[tuple[str | None, ...], list[Mapping[str, Any]]] = {}
    for image in sorted(plain, key=lambda each: -int(each["Created"])):
        kind = tuple(image["Labels"].get(label) for label in (Label.FRAMEWORK, Label.VERSION, Label.DEVICE))
        kinds.setdefault(kind, []).append(image)
    old = [image for kind in kinds.values() for image in kind[keep:] if image["Id"] not in used]
    bases = [name for image in old for name in image["RepoTags"]]
    baked = [image for image in ours if Label.REQUIREMENTS in image["Labels"] and image["Id"] not in used]
    on_top = [name for image in baked for name in image["RepoTags"] if name.partition(_BAKED)[0] in bases]
    return sorted(on_top) + sorted(bases)


def _is_ours(image: Mapping[str, Any]) -> bool:
    """Say whether it has a name, and none but those that `images build` gives."""
    prefix = f"{repository(image['Labels'].get(Label.FRAMEWORK, ''))}:"
    names = image["RepoTags"] or ()
    return bool(names) and all(name.startswith(prefix) for name in names)
