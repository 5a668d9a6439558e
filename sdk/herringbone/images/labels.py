"""The labels that describe an image."""

from __future__ import annotations

CONTRACT = "1"
# Names of images that we build start with this, possibly after a registry: `registry:5000/herringbone/pytorch:...`.
REPOSITORY = "herringbone"


class Label:
    """The names of the labels."""

    # "1": `train` is our supervisor, which reads the job's secrets from a private descriptor.
    CONTRACT = "dev.herringbone.contract"
    FRAMEWORK = "dev.herringbone.framework"
    DEVICE = "dev.herringbone.device"
    # The framework's version, without a build's suffix: "2.13.0".
    VERSION = "dev.herringbone.version"
    # On an image with a user's requirements: the hash of the requirements and of the image below.
    REQUIREMENTS = "dev.herringbone.requirements"


def repository(framework: str) -> str:
    """Return the repository of a framework's images.

    >>> repository("pytorch")
    'herringbone/pytorch'
    """
    return f"{REPOSITORY}/{framework}"
