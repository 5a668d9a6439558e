"""Find the container engine that the `docker` command would use, and explain why none answers."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.engine.client import Engine
from herringbone.engine.docker_settings import TlsFiles, current_context, docker_folder, read_context
from herringbone_contract.errors import EngineError, UnsupportedError

if TYPE_CHECKING:
    import ssl

SYSTEM_SOCKET = "/var/run/docker.sock"
_HELP = (
    "Start one (`sudo systemctl start docker`, `sudo dockerd`, or Docker Desktop), or set DOCKER_HOST to one that runs "
    "elsewhere, as tcp://host:2376 or ssh://user@host"
)
_PERMISSION_HELP = (
    "The engine runs, but you may not use it: `sudo usermod -aG docker $USER` and log in again, or run a rootless one"
)


@dataclass(frozen=True, slots=True)
class EngineEndpoint:
    """A possible address of an engine, the setting or convention it comes from, and its certificates."""

    origin: str
    address: str
    tls: TlsFiles | None = None


def find_engine(environ: Mapping[str, str], home: Path, *, tls: bool = False) -> Engine:
    """Return the first engine that accepts a connection.

    >>> find_engine(os.environ, Path.home()).get("/version")["ApiVersion"]       # doctest: +SKIP
    '1.41'

    The order is: DOCKER_HOST, else the current context of the `docker` command, else the first socket that exists.
    `tls` allows an engine behind TLS. A job's controller cannot use one: it inherits connections that are open, and the
    state of a TLS session stays in the process that opened it. Raises `EngineError` with everything that was tried, and
    `UnsupportedError` for an engine behind TLS without `tls`.
    """
    tried: list[tuple[str, OSError | str]] = []
    for endpoint in endpoints(environ, home):
        if endpoint.tls is not None and not tls:
            raise UnsupportedError(
                f"{endpoint.origin}: {endpoint.address} is behind TLS, which instance_type 'local' does not speak; "
                "reach that engine with DOCKER_HOST=ssh://user@host"
            )
        engine = Engine(endpoint.address, None if endpoint.tls is None else _tls_context(endpoint.tls))
        # A connection shows more than a path does: a socket may be left over from an engine that has ended.
        try:
            engine.open().close()
        except EngineError as error:
            cause = error.__cause__
            problem = cause if isinstance(cause, OSError) else str(error)
            tried.append((f"{endpoint.origin}: {endpoint.address}", problem))
        else:
            return engine
    raise EngineError(explain(tried))


def endpoints(environ: Mapping[str, str], home: Path) -> Iterator[EngineEndpoint]:
    """Yield the endpoints to try, in order; if the user named one, it is the only one.

    >>> list(endpoints({"DOCKER_HOST": "tcp://gpu:2375"}, Path("/home/a")))
    [EngineEndpoint(origin='DOCKER_HOST', address='tcp://gpu:2375', tls=None)]
    """
    folder = docker_folder(environ, home)
    # As in the docker command, DOCKER_HOST wins over DOCKER_CONTEXT and over the context in the settings.
    if address := environ.get("DOCKER_HOST"):
        yield EngineEndpoint("DOCKER_HOST", address, _tls_of_environment(address, environ, home))
        return
    context = current_context(environ, home)
    if context is not None:
        yield EngineEndpoint(f"context {context!r} of the docker command", *read_context(context, folder))
        return
    yield EngineEndpoint("the system's socket", f"unix://{SYSTEM_SOCKET}")
    if environ.get("XDG_RUNTIME_DIR"):
        yield EngineEndpoint("a rootless engine's socket", f"unix://{environ['XDG_RUNTIME_DIR']}/docker.sock")
    yield EngineEndpoint("Docker Desktop's socket", f"unix://{home}/.docker/run/docker.sock")


def explain(tried: list[tuple[str, OSError | str]]) -> str:
    """Return the message for a user without an engine: the addresses that were tried, and the remedy.

    >>> print(explain([("the system's socket: unix:///var/run/docker.sock", FileNotFoundError(2, "not there"))]))
    ... # doctest: +ELLIPSIS
    no container engine answers. Tried:
      the system's socket: unix:///var/run/docker.sock: not there
    Start one ...
    """
    lines = [f"  {address}: {_words(problem)}" for address, problem in tried]
    # A socket that refuses us has an engine behind it, so starting another one would not help.
    refused = any(isinstance(problem, PermissionError) for _, problem in tried)
    return "\n".join(["no container engine answers. Tried:", *lines, _PERMISSION_HELP if refused else _HELP])


def _tls_of_environment(address: str, environ: Mapping[str, str], home: Path) -> TlsFiles | None:
    """Return the certificates for DOCKER_HOST, None for a plain connection."""
    folder, verify = environ.get("DOCKER_CERT_PATH"), bool(environ.get("DOCKER_TLS_VERIFY"))
    # A local socket and an SSH connection need no TLS.
    if not address.startswith("tcp://") or not (folder or verify):
        return None
    return TlsFiles(Path(folder or home / ".docker"), verify)


def _tls_context(files: TlsFiles) -> ssl.SSLContext:
    import ssl

    authority, certificate = files.folder / "ca.pem", files.folder / "cert.pem"
    try:
        context = ssl.create_default_context(cafile=str(authority) if authority.exists() else None)
        if certificate.exists():
            context.load_cert_chain(certificate, files.folder / "key.pem")
    except OSError as error:
        raise EngineError(f"the engine's certificates in {files.folder} cannot be used: {error}") from error
    # `check_hostname` has to go first: the ssl module refuses CERT_NONE while it is on.
    if not files.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _words(problem: OSError | str) -> str:
    if not isinstance(problem, OSError):
        return problem
    if problem.errno == errno.ENOENT:
        return "not there"
    return (problem.strerror or str(problem)).lower()
