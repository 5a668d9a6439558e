"""Push an image to a registry; `Ecr` is the client of Amazon's: login, repositories, and existing images.

ACCOUNT.dkr.ecr.REGION.amazonaws.com[/PREFIX]  ->  Ecr  --tag exists--> done
                                                        --no tag--> make the repository if missing, token, push
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from herringbone.engine.client import Engine
from herringbone.engine.docker_settings import docker_folder, login_header, registry_login, registry_of
from herringbone.images.build import checked, inspect, split_name
from herringbone.system.user_paths import home_folder
from herringbone_contract.errors import AwsAccessError, AwsError, EngineError, ImageError

if TYPE_CHECKING:
    from herringbone.aws.session import AwsSession

_SHOWN = ("Pushed", "Layer already exists")
_ADDRESS = re.compile(
    r"(?P<host>(?P<account>\d{12})\.dkr\.ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?)(/(?P<prefix>.+))?"
)
# Engines push Docker's format or OCI's; an engine with containerd's store pushes an index of images.
_MANIFESTS = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
)
PUSH_PERMISSIONS = (
    "ecr:BatchCheckLayerAvailability, ecr:InitiateLayerUpload, ecr:UploadLayerPart, ecr:CompleteLayerUpload and "
    "ecr:PutImage on the repository"
)


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
    digest = None
    # An engine pushes under a name that its own list has, so the target becomes a local name first.
    engine.post(f"/images/{image}/tag", repo=name, tag=tag)
    login = registry_login(registry_of(name), docker_folder(os.environ, home_folder())) if ecr is None else ecr.login()
    steps = engine.stream("POST", f"/images/{name}/push", {"tag": tag}, headers=login_header(login))
    try:
        for step in checked(steps):
            if step.get("status") in _SHOWN:
                say(f"{step['status']} {step.get('id', '')}".rstrip())
            digest = step.get("aux", {}).get("Digest") or digest
    except EngineError as error:
        hint = _hint(str(error), name.partition("/")[0], ecr)
        raise ImageError(f"{name}:{tag} cannot be pushed: {error}{hint}") from None
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


class Ecr:
    """One account's registry in one region. `host` replaces the host in the address, for a registry elsewhere.

    >>> Ecr.at("123456789012.dkr.ecr.eu-west-1.amazonaws.com/team").repository("herringbone/pytorch")
    'team/herringbone/pytorch'

    Raises `AwsError`s, which name the missing permission.
    """

    def __init__(self, address: str, session: AwsSession, *, host: str | None = None) -> None:
        match = _ADDRESS.fullmatch(address.rstrip("/"))
        assert match is not None, f"not an address of ECR: {address}"
        self.host = host or match["host"]
        self._account, self._region, self._prefix = match["account"], match["region"], match["prefix"]
        self._session = session

    @classmethod
    def at(cls, address: str) -> Ecr | None:
        """Return the registry at an address, with the credentials that boto3 finds; None if it is not ECR."""
        match = _ADDRESS.fullmatch(address.rstrip("/"))
        if match is None:
            return None
        from herringbone.aws.session import AwsSession

        return cls(address, AwsSession(region=match["region"]))

    def repository(self, name: str) -> str:
        """Return the repository of an image's name: the name below the address's prefix."""
        return f"{self._prefix}/{name}" if self._prefix else name

    def find(self, repository: str, tag: str, image_id: str) -> str | None:
        """Return the digest of a tag that holds this image, None for a free tag.

        A tag with another image counts as free if tags may change there, and raises `ImageError` otherwise.
        """
        with self._session.explain_errors(f"to look for {repository}:{tag} in ECR"):
            images = self._client.batch_get_image(
                registryId=self._account,
                repositoryName=repository,
                imageIds=[{"imageTag": tag}],
                acceptedMediaTypes=list(_MANIFESTS),
            )["images"]
        # For ECR a missing tag is no error: the answer lists it under `failures` and `images` is empty.
        if not images:
            return None
        digest = str(images[0]["imageId"]["imageDigest"])
        # An engine identifies an image by its configuration or, with containerd's store, by its manifest.
        # An index has no `config`, hence the default.
        config = json.loads(images[0]["imageManifest"]).get("config", {}).get("digest")
        if image_id in (config, digest):
            return digest
        if not self._tags_may_change(repository):
            raise ImageError(
                f"{self.host}/{repository}:{tag} is there already, with another image ({digest}), and tags of this "
                "repository are immutable; give the image another tag (`docker tag`) and push that"
            )
        return None

    def make_repository(self, repository: str, say: Callable[[str], None]) -> None:
        """Make the repository if it is missing, with immutable tags and a scan at each push."""
        try:
            with self._session.explain_errors(f"to look for the repository {repository} in ECR"):
                self._client.describe_repositories(registryId=self._account, repositoryNames=[repository])
            return
        except AwsError as error:
            if error.code != "RepositoryNotFoundException":
                raise
        try:
            with self._session.explain_errors(f"to make the repository {repository} in ECR"):
                self._client.create_repository(
                    registryId=self._account,
                    repositoryName=repository,
                    imageTagMutability="IMMUTABLE",
                    imageScanningConfiguration={"scanOnPush": True},
                )
            say(f"made the repository {repository}")
        except AwsAccessError as error:
            raise AwsAccessError(
                f"{error}. The repository is missing; somebody with the permission can make it: "
                f"`aws ecr create-repository --region {self._region} --repository-name {repository} "
                "--image-tag-mutability IMMUTABLE`",
                code=error.code,
            ) from None
        except AwsError as error:
            if error.code != "RepositoryAlreadyExistsException":  # another process made it in the meantime
                raise

    def login(self) -> dict[str, str]:
        """Return the login that the engine needs for one push. It holds a token, so do not store or show it."""
        with self._session.explain_errors("to log in to ECR"):
            answer = self._client.get_authorization_token()
        token = base64.b64decode(answer["authorizationData"][0]["authorizationToken"]).decode()
        # ECR packs the login as `AWS:<password>`.
        name, _, password = token.partition(":")
        return {"username": name, "password": password}

    def _tags_may_change(self, repository: str) -> bool:
        with self._session.explain_errors(f"whether tags of {repository} may change"):
            answer = self._client.describe_repositories(registryId=self._account, repositoryNames=[repository])
        return bool(answer["repositories"][0]["imageTagMutability"] == "MUTABLE")

    @property
    def _client(self) -> Any:
        return self._session.client("ecr")
