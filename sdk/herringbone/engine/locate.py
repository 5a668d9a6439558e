"""Which engine runs a user's containers: the one that the `docker` command would use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from herringbone.engine.client import Engine
from herringbone.engine.docker_py import explain, places
from herringbone_contract.errors import EngineError, UnsupportedError


def find_engine(environ: Mapping[str, str], home: Path) -> Engine:
    """Return the first engine that lets us in. Raises `EngineError` with all that was tried, and what to start."""
    tried: list[tuple[str, OSError | str]] = []
    for place in places(environ, home):
        if place.tls is not None or (place.address.startswith("tcp://") and environ.get("DOCKER_TLS_VERIFY")):
            raise UnsupportedError(
                f"{place.origin}: {place.address} is behind TLS, which instance_type 'local' does not speak; reach "
                "that engine with DOCKER_HOST=ssh://user@host"
            )
        engine = Engine(place.address)
        try:
            engine.open().close()
        except EngineError as error:
            cause = error.__cause__
            tried.append((f"{place.origin}: {place.address}", cause if isinstance(cause, OSError) else str(error)))
        else:
            return engine
    raise EngineError(explain(tried))
