"""Links among the files of a container."""

from __future__ import annotations

import json
from base64 import b64decode

from herringbone.engine.client import Engine, send, whole_head

_STAT = "x-docker-container-path-stat"


def link_target(engine: Engine, container: str, path: str) -> str:
    """Return where a link leads; "" for a path that is no link, or that does not exist.

    >>> link_target(engine, "digits-1-algo-1", "/bin")               # doctest: +SKIP
    '/usr/bin'
    """
    with engine.open() as connection:
        try:
            send(connection, "HEAD", f"/containers/{container}/archive", {"path": path})
            fields = whole_head(connection).decode("latin-1").split("\r\n")
        except OSError as error:
            raise engine.no_answer(error) from error
    stats = [value for name, _, value in (field.partition(":") for field in fields) if name.lower() == _STAT]
    return str(json.loads(b64decode(stats[0])).get("linkTarget") or "") if stats else ""
