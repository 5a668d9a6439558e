"""The image for TensorFlow is built and can run jobs."""

import pytest

from herringbone.images.check import Verdict, check

# A first build takes minutes.
pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]


def test_it_is_built_and_passes(engine, build_image):
    image = build_image("tensorflow")
    found = {finding.subject: finding for finding in check(engine, image)}
    assert {subject: finding.detail for subject, finding in found.items() if finding.verdict is not Verdict.OK} == {}
    assert found["framework"].detail.startswith("tensorflow 2.")
