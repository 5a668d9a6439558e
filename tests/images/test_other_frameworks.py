"""The images for TensorFlow and MXNet are built and can run jobs."""

import pytest

from herringbone.images.check import Verdict, check

# A first build takes minutes.
pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("framework", "version"), [("tensorflow", "2."), ("mxnet", "1.9.")])
def test_the_image_is_built_and_passes(framework, version, own_engine, build_image):
    image = build_image(framework)
    findings = {finding.subject: finding for finding in check(own_engine, image)}
    assert {subject: finding.detail for subject, finding in findings.items() if finding.verdict is not Verdict.OK} == {}
    assert findings["framework"].detail.startswith(f"{framework} {version}")
