"""Push an image to a registry."""

from __future__ import annotations

import os
from collections.abc import Callable

from herringbone.engine.client import Engine
from herringbone.engine.docker_settings import docker_folder, login_header, registry_login, registry_of
from herringbone.images.build import inspect, split_name
from herringbone.images.ecr import PUSH_PERMISSIONS, Ecr
from herringbone.system.user_paths import home_folder
from herringbone_contract.errors import ImageError

_SHOWN = ("Pushed", "Layer already exists")


def push(engine: Engine, image: str, registry: str | Ecr, say: Callable[[str], None]) -> str:
    """Push an image and return its name there by digest, which no later push can change.

    >>> push(engine, "herringbone/pytorch:2.13.0-cpu-7c5b", "127.0.0.1:5000", print)     # doctest: +SKIP
    '127.0.0.1:5000/herringbone/pytorch@sha256:...'

    The login is that of the `docker` command (docker login). For ECR it is a token for this push alone, made with the
    user's AWS credentials; a missing repository is made, and an image that the tag holds already is not sent again.
    Raises `ImageError` for an image that the engine does not have and for a registry that refuses it, and
    `AwsError`s for requests that ECR refuses.
    """
    description = inspect(engine, image)
    if description is None:
        raise ImageError(f"the image {image} is not on this engine; `herringbone images ls` lists those that are")
    local, tag = split_name(image)
    if tag is None:
        raise ImageError(f"the image {image} is named by digest; push it by a tag")
    ecr = Ecr.at(registry) if isinstance(registry, str) else registry
    if ecr is None:
        assert isinstance(registry, str)
        return _send(engine, image, f"{registry.rstrip('/')}/{local}", tag, say)
    repository = ecr.repository(local)
    name = f"{ecr.host}/{repository}"
    # Before the search for the tag: ECR answers a search in a missing repository with an error.
    ecr.make_repository(repository, say)
    digest = ecr.find(repository, tag, description["Id"])
    if digest is not None:
        say(f"{name}:{tag} is there already")
        return f"{name}@{digest}"
    return _send(engine, image, name, tag, say, ecr)


def _send(engine: Engine, image: str, name: str, tag: str, say: Callable[[str], None], ecr: Ecr | None = None) -> str:
    digest = error = None
    # An engine pushes under a name that its own list has, so the target becomes a local name first.
    engine.post(f"/images/{image}/tag", repo=name, tag=tag)
    login = registry_login(registry_of(name), docker_folder(os.environ, home_folder())) if ecr is None else ecr.login()
    # The answer begins with status 200, so a failure is a member of one of its objects.
    for step in engine.stream("POST", f"/images/{name}/push", {"tag": tag}, headers=login_header(login)):
        error = step.get("error", error)
        if step.get("status") in _SHOWN:
            say(f"{step['status']} {step.get('id', '')}".rstrip())
        digest = step.get("aux", {}).get("Digest") or digest
    if error is not None:
        registry = name.partition("/")[0]
        raise ImageError(f"{name}:{tag} cannot be pushed: {error}{_hint(error, registry, ecr)}")
    return f"{name}@{digest}" if digest else f"{name}:{tag}"


def _hint(error: str, registry: str, ecr: Ecr | None) -> str:
    # Registries and the engine give no codes here, and spell the same sentence in capitals or without.
    text = error.lower()
    if "connection refused" in text or "no such host" in text or "i/o timeout" in text:
        return f"; does a registry answer at {registry}?"
    if "denied" in text or "unauthorized" in text or "no basic auth" in text:
        if ecr is not None:
            return f"; the caller needs {PUSH_PERMISSIONS}: ask the account's owner for them"
        return f"; log in with: docker login {registry}"
    if "server gave http response" in text:
        return f"; it has no TLS: add {registry} to the engine's insecure-registries, or give it a certificate"
    return ""
