"""Whether the job's image is in the caller's registry: the service finds out minutes later, when hosts are there."""

from __future__ import annotations

import re

from herringbone.aws.session import AwsSession
from herringbone_contract.errors import AwsAccessError, AwsError, ImageError

_NAME = re.compile(
    r"(?P<registry>(?P<account>\d{12})\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?)/"
    r"(?P<repository>[^:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>.+))?"
)
_MISSING = ("ImageNotFoundException", "RepositoryNotFoundException")


def check_image(session: AwsSession, image: str) -> None:
    """Raise `ImageError` for an image that the caller's own registry has not.

    >>> check_image(session, "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1")       # doctest: +SKIP

    Other registries, and one that the caller may not look into, are left to the service, which pulls by the job's role.
    """
    name = _NAME.fullmatch(image)
    if name is None or name["account"] != session.account:
        return
    wanted = {"imageDigest": name["digest"]} if name["digest"] else {"imageTag": name["tag"] or "latest"}
    try:
        with session.asking(f"to find image {image}"):
            session.client("ecr", region=name["region"]).describe_images(
                registryId=name["account"], repositoryName=name["repository"], imageIds=[wanted]
            )
    except AwsAccessError:
        return
    except AwsError as error:
        if error.code in _MISSING:
            raise ImageError(
                f"image_uri: {image}: the registry has no such image; push it: "
                f"`herringbone images push IMAGE {name['registry']}`"
            ) from None
        raise
