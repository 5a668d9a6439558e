"""Amazon's registry: the login, the repository, and whether an image is there already.

ACCOUNT.dkr.ecr.REGION.amazonaws.com[/PREFIX]  ->  Ecr  --is the tag there?--> done
                                                        --no--> repository made if missing, token, push
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from herringbone_contract.errors import AwsAccessError, AwsError, ImageError

if TYPE_CHECKING:
    from herringbone.aws.session import AwsSession

_ADDRESS = re.compile(
    r"(?P<host>(?P<account>\d{12})\.dkr\.ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?)(/(?P<prefix>.+))?"
)
_MANIFESTS = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
)
PUSH_PERMISSIONS = (
    "ecr:BatchCheckLayerAvailability, ecr:InitiateLayerUpload, ecr:UploadLayerPart, ecr:CompleteLayerUpload and "
    "ecr:PutImage on the repository"
)


class Ecr:
    """One account's registry in one region; `host` is where its images go to, where that is another place.

    >>> Ecr.at("123456789012.dkr.ecr.eu-west-1.amazonaws.com/team").repository("herringbone/pytorch")
    'team/herringbone/pytorch'

    Raises `AwsError`s, with the permission that is missing.
    """

    def __init__(self, address: str, session: AwsSession, *, host: str | None = None) -> None:
        found = _ADDRESS.fullmatch(address.rstrip("/"))
        assert found is not None, f"not an address of ECR's: {address}"
        self.host = host or found["host"]
        self._account, self._region, self._prefix = found["account"], found["region"], found["prefix"]
        self._session = session

    @classmethod
    def at(cls, address: str) -> Ecr | None:
        """Return the registry of that address, with the credentials that boto3 finds; None if it is not ECR's."""
        found = _ADDRESS.fullmatch(address.rstrip("/"))
        if found is None:
            return None
        from herringbone.aws.session import AwsSession

        return cls(address, AwsSession(region=found["region"]))

    def repository(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def find(self, repository: str, tag: str, image_id: str) -> str | None:
        """Return the digest of a tag that holds this very image, None where the tag is free.

        Raises `ImageError` where it holds another image and may not change; where it may, it counts as free.
        """
        with self._session.explain_errors(f"to look for {repository}:{tag} in ECR"):
            found = self._client.batch_get_image(
                registryId=self._account,
                repositoryName=repository,
                imageIds=[{"imageTag": tag}],
                acceptedMediaTypes=list(_MANIFESTS),
            )["images"]
        if not found:
            return None
        digest = str(found[0]["imageId"]["imageDigest"])
        # An engine names an image by its configuration, or (with containerd's store) by its manifest.
        config = json.loads(found[0]["imageManifest"]).get("config", {}).get("digest")
        if image_id in (config, digest):
            return digest
        if not self._tags_may_change(repository):
            raise ImageError(
                f"{self.host}/{repository}:{tag} is there already, with another image ({digest}), and tags of this "
                "repository are immutable; give the image another tag (`docker tag`) and push that"
            )
        return None

    def make_repository(self, repository: str, say: Callable[[str], None]) -> None:
        """Make the repository if it is missing: tags that never change, a scan at each push."""
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
                f"{error}. It is missing; who may can make it: `aws ecr create-repository --region {self._region} "
                f"--repository-name {repository} --image-tag-mutability IMMUTABLE`, or infra/terraform",
                code=error.code,
            ) from None
        except AwsError as error:
            if error.code != "RepositoryAlreadyExistsException":  # somebody was quicker
                raise

    def login(self) -> dict[str, str]:
        """Return what the engine needs for one push. It holds a token: neither to be stored nor to be shown."""
        with self._session.explain_errors("to log in to ECR"):
            answer = self._client.get_authorization_token()
        token = base64.b64decode(answer["authorizationData"][0]["authorizationToken"]).decode()
        name, _, password = token.partition(":")
        return {"username": name, "password": password}

    def _tags_may_change(self, repository: str) -> bool:
        with self._session.explain_errors(f"whether tags of {repository} may change"):
            found = self._client.describe_repositories(registryId=self._account, repositoryNames=[repository])
        return bool(found["repositories"][0]["imageTagMutability"] == "MUTABLE")

    @property
    def _client(self) -> Any:
        return self._session.client("ecr")
