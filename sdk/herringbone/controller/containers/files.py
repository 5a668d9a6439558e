"""Files of containers on this machine: copies from an engine elsewhere, and what layers over channels leave behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from herringbone.engine.client import Engine, EngineRefusal
from herringbone_contract.archives import unpack
from herringbone_contract.errors import ArchiveError, EngineError

_NOT_FOUND = 404
Say = Callable[[str], None]


def clear_layers(engine: Engine, layers: str, image: str) -> None:
    """Remove what the kernel keeps in the layers over a job's channels, and which only root may look into.

    A container of root does it, from an image that the engine has; without `rm` in it, these folders stay. Raises
    `EngineError`.
    """
    # Files of the kernel's own, also those of a layer that is not mounted any more.
    left = [folder for folder in Path(layers).glob("*/*/work/work") if not _removed(folder)]
    if not left:
        return
    request = {
        "Image": image,
        "User": "0",
        "Entrypoint": ["rm", "-rf", "--"],
        "Cmd": [f"/layers/{folder.relative_to(layers)}" for folder in left],
        "HostConfig": {
            "Mounts": [{"Type": "bind", "Source": layers, "Target": "/layers"}],
            "NetworkMode": "none",
            "AutoRemove": True,
            "CapDrop": ["ALL"],
            "CapAdd": ["DAC_OVERRIDE"],
            "SecurityOpt": ["no-new-privileges"],
            "LogConfig": {"Type": "none"},
        },
    }
    container = engine.post("/containers/create", request)["Id"]
    try:
        engine.post(f"/containers/{container}/start")
        # It may have ended, and have removed itself, before the engine reads this.
        with contextlib.suppress(EngineRefusal):
            engine.post(f"/containers/{container}/wait", condition="removed")
    finally:
        # One that could not start does not remove itself.
        with contextlib.suppress(EngineError):
            engine.delete(f"/containers/{container}", force=True)


def _removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
        return True
    return False


def fetch(engine: Engine, container: str, inside: str, into: Path, say: Say) -> None:
    """Copy a folder of a container into a folder of this machine; a folder that does not exist is skipped.

    >>> fetch(engine, "digits-1-algo-1", "/opt/ml/model", Path("model"), print)      # doctest: +SKIP

    Only files, folders and links that stay inside the folder are copied; `say` gets a message about all others. Raises
    `ArchiveError` when the connection to the engine breaks.
    """
    try:
        with engine.download(container, inside) as stream:
            into.mkdir(parents=True, exist_ok=True)
            # The members come from the job's own script, so none of them is trusted.
            unpack(
                stream,
                into,
                shown=f"{inside} of the container",
                in_folder=True,
                root=inside,
                refused=lambda name, reason: say(f"{name} is left out: {reason}"),
            )
    except EngineRefusal as error:
        if error.status != _NOT_FOUND:
            raise
    except OSError as error:
        raise ArchiveError(f"{inside} of the container could not be fetched into {into}: {error}") from error
