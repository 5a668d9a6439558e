"""The labels by which an image says what it is."""

from __future__ import annotations

CONTRACT = "1"
# Images that we build carry this name, or end in it behind a registry's: `registry:5000/herringbone/pytorch:...`.
REPOSITORY = "herringbone"


class Label:
    """Names of labels, each spelled once."""

    # "1": `train` is our supervisor, and takes the job's secrets on a private descriptor.
    CONTRACT = "dev.herringbone.contract"
    FRAMEWORK = "dev.herringbone.framework"
    DEVICE = "dev.herringbone.device"
    # The framework's version, without a build's suffix: "2.13.0".
    VERSION = "dev.herringbone.version"
    # Of an image with a user's requirements baked in: a hash of them and of what they stand on.
    REQUIREMENTS = "dev.herringbone.requirements"


def repository(framework: str) -> str:
    """Return the name under which a framework's images are kept.

    >>> repository("pytorch")
    'herringbone/pytorch'
    """
    return f"{REPOSITORY}/{framework}"
