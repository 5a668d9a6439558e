"""The volumes that an image declares (`VOLUME`), where they would cover what a job reads or writes.

The engine lays an empty volume without a name over each declared folder, also below a mounted one, and the files there
go with the container. A mount at exactly that path takes the volume's place:

    VOLUME /opt/ml/output/data     /opt/ml, /opt/ml/output and /opt/ml/output/data are mounted
    VOLUME /opt/ml/model/part      refused
    VOLUME /w, a link to /opt/ml   refused, once the container is made: only the engine knows the image's links

Mounts are of folders of the contract alone, with all folders above them: no script can replace a folder on which
something is mounted, and the engine mounts again, by name, when the container starts again. Pure.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from herringbone.backends.docker.tree import CACHE, INSIDE, SHARED, WHOLE_CHANNELS, Mount
from herringbone_contract.errors import UnsupportedError

if TYPE_CHECKING:
    from herringbone.backends.docker.image import Image
    from herringbone.plan.plan import JobPlan

_REMEDY = "build the image without that VOLUME"


def volume_mounts(image: Image, plan: JobPlan, tree: Path) -> list[Mount]:
    """Return the mounts of folders of a host's tree that take the places of the image's volumes.

    Raises `UnsupportedError` for a volume inside of a folder of the contract.
    """
    upper = {INSIDE.input, INSIDE.data, INSIDE.output}
    channels = {INSIDE.channel(channel.name) for channel in plan.channels}
    lower = {INSIDE.config, INSIDE.code, INSIDE.model, INSIDE.output_data, INSIDE.checkpoints, *channels}
    others = {SHARED, PurePosixPath(CACHE), *(WHOLE_CHANNELS / channel.name for channel in plan.channels)}
    if plan.options.tensorboard_output_config is not None:
        others.add(INSIDE.tensorboard)
    own, wanted = upper | lower, set()
    for path in map(cleaned, image.volumes):
        if path in own:
            wanted |= {path, *path.parents} & own
        elif path not in others and (cover := {INSIDE.output, *lower, *others}.intersection(path.parents)):
            raise UnsupportedError(
                f"image_uri: {image.name} declares a volume at {path}, with which the engine would hide that part of "
                f"{max(cover, key=lambda folder: len(folder.parts))} from the job; {_REMEDY}"
            )
    return [Mount(str(tree / path.relative_to(INSIDE.base)), str(path)) for path in sorted(wanted)]


def refuse_links(image: Image, link_target: Callable[[str], str]) -> None:
    """Raise `UnsupportedError` for a volume that links of the image lead to the contract's tree, or above it.

    `link_target` returns where a path of the made container leads, "" for one that is no link.
    """
    others = [path for path in map(cleaned, image.volumes) if not path.is_relative_to(INSIDE.base)]
    base = _followed(PurePosixPath(INSIDE.base), link_target) if others else INSIDE.base
    for path in others:
        real = _followed(path, link_target)
        if (real, base) != (path, INSIDE.base) and (real.is_relative_to(base) or base.is_relative_to(real)):
            raise UnsupportedError(
                f"image_uri: {image.name} declares a volume at {path}. By links of the image it is at {real}, and "
                f"{INSIDE.base} at {base}, so the engine would cover what the job writes there; {_REMEDY}"
            )


def cleaned(volume: str) -> PurePosixPath:
    """Return a volume's path as the engine uses it.

    >>> cleaned("/opt/ml/./model/")
    PurePosixPath('/opt/ml/model')
    """
    return PurePosixPath(posixpath.normpath(f"/{volume.lstrip('/')}"))


def _followed(path: PurePosixPath, link_target: Callable[[str], str]) -> PurePosixPath:
    real = PurePosixPath("/")
    for part in path.parts[1:]:
        real = cleaned(str(real / (link_target(str(real / part)) or part)))
    return real
