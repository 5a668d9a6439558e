"""The door to a container engine: which one, and why none when none answers."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from herringbone_contract.errors import EngineError, UnsupportedError

SYSTEM_SOCKET = "/var/run/docker.sock"
_HELP = (
    "Start one (`sudo systemctl start docker`, `sudo dockerd`, or Docker Desktop), or set DOCKER_HOST to one that runs "
    "elsewhere, as tcp://host:2376 or ssh://user@host"
)
_PERMISSION_HELP = (
    "The engine runs, but you may not use it: `sudo usermod -aG docker $USER` and log in again, or run a rootless one"
)


def connect(environ: Mapping[str, str] | None = None) -> Any:
    """Return docker-py's `APIClient` of the engine that the `docker` command would use.

    >>> connect().version()["ApiVersion"]       # doctest: +SKIP
    '1.41'

    Taken is what DOCKER_HOST names; else the current context of the `docker` command; else the first socket that is
    there. Raises `EngineError`, which says what was tried, and `UnsupportedError` where docker-py is not installed.
    """
    environ = os.environ if environ is None else environ
    tried: list[tuple[str, OSError | str]] = []
    for place in places(environ, Path.home()):
        problem: OSError | str | None = _unreachable(place.address)
        if problem is None:
            try:
                return _client(place, environ)
            except _docker().errors.DockerException as error:
                problem = _root_cause(error)
        tried.append((f"{place.origin}: {place.address}", problem))
    raise EngineError(explain(tried))


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine may be: how we came to look there, its address, and docker-py's settings for a context's TLS."""

    origin: str
    address: str
    tls: Any = None


def places(environ: Mapping[str, str], home: Path) -> Iterator[Place]:
    """Yield the places to try, in order; one that the user named is the only one.

    >>> list(places({"DOCKER_HOST": "tcp://gpu:2376"}, Path("/home/a")))
    [Place(origin='DOCKER_HOST', address='tcp://gpu:2376', tls=None)]
    """
    if environ.get("DOCKER_HOST"):
        yield Place("DOCKER_HOST", environ["DOCKER_HOST"])
        return
    configured = Path(environ.get("DOCKER_CONFIG") or home / ".docker")
    context = environ.get("DOCKER_CONTEXT") or _current_context(configured / "config.json")
    if context and context != "default":
        yield _place_of_context(context)
        return
    yield Place("the system's socket", f"unix://{SYSTEM_SOCKET}")
    if environ.get("XDG_RUNTIME_DIR"):
        yield Place("a rootless engine's socket", f"unix://{environ['XDG_RUNTIME_DIR']}/docker.sock")
    yield Place("Docker Desktop's socket", f"unix://{home}/.docker/run/docker.sock")


def explain(tried: list[tuple[str, OSError | str]]) -> str:
    """Return the message for a user without an engine: what was tried, and what to do.

    >>> print(explain([("the system's socket: unix:///var/run/docker.sock", FileNotFoundError(2, "not there"))]))
    ... # doctest: +ELLIPSIS
    no container engine answers. Tried:
      the system's socket: unix:///var/run/docker.sock: not there
    Start one ...
    """
    lines = [f"  {where}: {_words(problem)}" for where, problem in tried]
    refused = any(isinstance(problem, PermissionError) for _, problem in tried)
    return "\n".join(["no container engine answers. Tried:", *lines, _PERMISSION_HELP if refused else _HELP])


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Turn an engine's refusal, or its silence, into an `EngineError` that says what was asked of it.

    >>> with asking("to list images"):          # doctest: +SKIP
    ...     engine.images()
    """
    import requests

    try:
        yield
    except _docker().errors.APIError as error:
        raise EngineError(f"the container engine refuses {what}: {error.explanation or error}") from error
    except (_docker().errors.DockerException, requests.RequestException) as error:
        raise EngineError(f"the container engine went away when asked {what}: {_words(_root_cause(error))}") from error


@contextmanager
def missing() -> Iterator[None]:
    """Go on behind the block when the engine has no such thing."""
    try:
        yield
    except _docker().errors.NotFound:
        pass


def _client(place: Place, environ: Mapping[str, str]) -> Any:
    docker = _docker()
    by_ssh = place.address.startswith("ssh://")
    if by_ssh and not hasattr(docker.transport, "SSHHTTPAdapter"):
        raise UnsupportedError(f"{place.origin}: {place.address} needs docker-py with ssh: pip install 'docker[ssh]'")
    settings = docker.utils.kwargs_from_env(environment={**environ, "DOCKER_HOST": place.address})
    if place.tls is not None:
        settings["tls"] = place.tls
    # The user's own ssh knows his hosts, keys and agent.
    return docker.APIClient(version="auto", use_ssh_client=by_ssh, **settings)


def _docker() -> Any:
    try:
        import docker
        import docker.context
    except ImportError as error:
        raise UnsupportedError(
            f"containers need docker-py, which is not installed here ({error}): pip install 'herringbone[docker]'"
        ) from None
    return docker


def _unreachable(address: str) -> OSError | None:
    """Knock at a socket: the system says best why it does not open."""
    if not address.startswith("unix://"):
        return None
    try:
        with socket.socket(socket.AF_UNIX) as knock:
            knock.connect(address.removeprefix("unix://"))
    except OSError as error:
        return error
    return None


def _current_context(file: Path) -> str | None:
    try:
        name = json.loads(file.read_text(encoding="utf-8")).get("currentContext")
    except (OSError, ValueError, AttributeError):
        return None
    return name if isinstance(name, str) else None


def _place_of_context(name: str) -> Place:
    context = _docker().context.ContextAPI.get_context(name)
    if context is None:
        raise EngineError(f"the docker command's context {name!r} does not exist; `docker context ls` lists them")
    return Place(f"context {name!r} of the docker command", context.Host, context.TLSConfig)


def _root_cause(error: BaseException) -> OSError | str:
    """Return what the system said, from below the layers of libraries that passed it on."""
    inner: BaseException | None = error
    while inner is not None:
        for candidate in (inner, *inner.args):
            if isinstance(candidate, OSError) and candidate.errno is not None:
                return candidate
        inner = inner.__cause__ or inner.__context__
    return str(error)


def _words(problem: OSError | str) -> str:
    if not isinstance(problem, OSError):
        return problem
    if problem.errno == errno.ENOENT:
        return "not there"
    return (problem.strerror or str(problem)).lower()
