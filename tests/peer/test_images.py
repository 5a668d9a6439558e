"""Names of AWS's training images: the SDK's own, or refused."""

import json
import subprocess

import pytest
from tests.peer.test_peer import HERE, PEER_PYTHON

from herringbone.aws.image_uris import image_uri
from herringbone_contract.errors import OptionError, UnsupportedError

FRAMEWORKS = ("pytorch", "tensorflow", "mxnet", "huggingface", "sklearn", "xgboost")


@pytest.mark.peer
def test_each_name_is_the_sdks_or_refused():
    if not PEER_PYTHON.exists():
        pytest.skip("no peer: run tests/peer/setup")
    asked = subprocess.run(
        [PEER_PYTHON, HERE / "ask_images.py", *FRAMEWORKS, "linear-learner", "kmeans"],
        check=True,
        capture_output=True,
        timeout=300,
    )
    same, refused, other = 0, 0, []
    for framework, version, base, python, kind, region, theirs in json.loads(asked.stdout):
        try:
            ours = image_uri(
                framework, region=region, version=version, py_version=python, instance_type=kind, base_version=base
            )
        except (OptionError, UnsupportedError):
            refused += theirs is not None
            continue
        # A tag may exist that this release of the SDK does not know: a newer Python of an old version, for example.
        same += ours == theirs
        if theirs is not None and ours != theirs:
            other.append((ours, theirs))
    assert other == []
    assert same > 2000
    # Old images in other accounts, and algorithms of AWS's own.
    assert refused < 400
