"""Read the settings of the `docker` command: engine contexts, logins to registries, and proxies.

Everything comes from `config.json` and its neighbours in the folder `~/.docker`, or `$DOCKER_CONFIG`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from herringbone_contract.errors import EngineError

_DOCKER_HUB = "https://index.docker.io/v1/"
_PROXIES = {"httpProxy": "http_proxy", "httpsProxy": "https_proxy", "ftpProxy": "ftp_proxy", "noProxy": "no_proxy"}
# Credential programs answer with this user name where the secret is an identity token.
_TOKEN_USER = "<token>"  # noqa: S105 - a name, not a secret


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A folder with `ca.pem`, `cert.pem` and `key.pem`. `verify` is False where any server is trusted."""

    folder: Path
    verify: bool


def docker_folder(environ: Mapping[str, str], home: Path) -> Path:
    """Return the folder with the `docker` command's settings."""
    return Path(environ.get("DOCKER_CONFIG") or home / ".docker")


def current_context(environ: Mapping[str, str], home: Path) -> str | None:
    """Return the context that the `docker` command uses, None for the default one."""
    name = environ.get("DOCKER_CONTEXT") or _config(docker_folder(environ, home)).get("currentContext")
    return name if isinstance(name, str) and name != "default" else None


def read_context(name: str, folder: Path) -> tuple[str, TlsFiles | None]:
    """Return the engine's address of a context, and its certificates if it has some. Raises `EngineError`."""
    # The docker command names the folders of a context by the hash of its name, which may hold any character.
    identifier = hashlib.sha256(name.encode()).hexdigest()
    try:
        metadata = json.loads((folder / "contexts" / "meta" / identifier / "meta.json").read_text(encoding="utf-8"))
        endpoint = metadata["Endpoints"]["docker"]
        address = str(endpoint["Host"])
    except FileNotFoundError:
        raise EngineError(
            f"the docker command's context {name!r} does not exist; `docker context ls` lists them"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise EngineError(f"the docker command's context {name!r} cannot be read: {error}") from error
    certificates = folder / "contexts" / "tls" / identifier / "docker"
    if not certificates.is_dir():
        return address, None
    return address, TlsFiles(certificates, verify=not endpoint.get("SkipTLSVerify", True))


def registry_login(registry: str, folder: Path) -> dict[str, str]:
    """Return the login that `docker login` stored for a registry, as the Engine API takes it; {} without one.

    >>> registry_login("registry:5000", Path("/home/me/.docker"))
    {}

    A credential program that the settings name is asked first.
    """
    config = _config(folder)
    # `docker login` files Docker Hub under the address of its first API.
    key = _DOCKER_HUB if registry == "docker.io" else registry
    # A program for one registry wins over the one for all, as in the docker command.
    program = _section(config, "credHelpers").get(registry) or config.get("credsStore")
    if program and (login := _ask_program(f"docker-credential-{program}", key)):
        return login
    for address in _section(config, "auths"):
        entry = _section(_section(config, "auths"), address)
        if _host_of(address) == _host_of(key) and (entry.get("auth") or entry.get("identitytoken")):
            try:
                # Only the first colon separates: a password may contain more.
                user, _, password = base64.b64decode(entry.get("auth", "")).decode().partition(":")
            except (ValueError, TypeError):
                raise EngineError(
                    f"the login for {address} in {folder / 'config.json'} is damaged; run `docker login {address}`"
                ) from None
            token = {"identitytoken": entry["identitytoken"]} if entry.get("identitytoken") else {}
            # The docker command strips NULs from a stored password, too.
            return {"username": user, "password": password.rstrip("\0"), "serveraddress": address, **token}
    return {}


def registry_of(image: str) -> str:
    """Return the registry of an image's name.

    >>> registry_of("registry:5000/team/base"), registry_of("debian:12")
    ('registry:5000', 'docker.io')
    """
    # Docker's own rule: without a dot, a port or `localhost`, the first part is a namespace of Docker Hub.
    prefix, slash, _ = image.partition("/")
    return prefix if slash and (prefix == "localhost" or "." in prefix or ":" in prefix) else "docker.io"


def login_header(login: Mapping[str, str]) -> dict[str, str]:
    """Return the header that carries a login to the engine; the engine wants it for a push even without a login."""
    # The Engine API specifies base64 with the URL-safe alphabet for this header.
    return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(dict(login)).encode()).decode()}


def proxy_variables(folder: Path) -> dict[str, str]:
    """Return the variables that the `docker` command sets in builds and containers for its configured proxies."""
    proxies = _section(_section(_config(folder), "proxies"), "default")
    variables = {}
    for key, name in _PROXIES.items():
        if proxies.get(key):
            # Programs read one spelling or the other.
            variables[name] = variables[name.upper()] = str(proxies[key])
    return variables


def _config(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # as the docker command does without settings
    return content if isinstance(content, dict) else {}


def _section(settings: dict[str, Any], name: str) -> dict[str, Any]:
    section = settings.get(name)
    return section if isinstance(section, dict) else {}


def _ask_program(program: str, address: str) -> dict[str, str] | None:
    try:
        run = subprocess.run([program, "get"], input=address, capture_output=True, text=True, check=True)
        answer = json.loads(run.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (OSError, subprocess.CalledProcessError, ValueError, LookupError, TypeError):
        return None  # no such program, or no login for this registry
    if user == _TOKEN_USER:
        return {"identitytoken": secret, "serveraddress": address}
    return {"username": user, "password": secret, "serveraddress": address}


def _host_of(address: str) -> str:
    return address.partition("://")[2].partition("/")[0] if "://" in address else address.partition("/")[0]
