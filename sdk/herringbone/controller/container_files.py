"""Copies the files of a container to this machine, for an engine that cannot mount folders of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from herringbone.engine.client import Engine, EngineRefusal
from herringbone_contract.archives import unpack
from herringbone_contract.errors import ArchiveError

_NOT_FOUND = 404
Say = Callable[[str], None]


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
