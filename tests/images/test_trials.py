"""Trials in real containers: of our image, of an image that cannot run jobs, and of images with defects."""

import pytest

from herringbone.images.check import Verdict, check

pytestmark = pytest.mark.docker


def findings(own_engine, image):
    return {finding.subject: finding for finding in check(own_engine, image)}


def test_our_image_passes(own_engine, image):
    found = findings(own_engine, image)
    assert {subject: finding.detail for subject, finding in found.items() if finding.verdict is not Verdict.OK} == {}
    assert found["framework"].detail.startswith("pytorch ")
    assert found["any user"].detail == "uid 47110"
    assert found["MPI job"].detail == "two ranks"


def test_an_image_without_train(own_engine, base_image):
    found = findings(own_engine, base_image)
    assert found["contract"].verdict is Verdict.WARNING
    assert found["a job"].verdict is Verdict.FAILED
    assert found["a job"].detail == "the image has no program `train`: pip install herringbone in it"
    assert list(found) == ["contract", "a job"]


def test_an_image_with_needless_files(own_engine, image, derive):
    worse = derive(
        image,
        "RUN mkdir -p /root/.ssh && echo '-----BEGIN OPENSSH PRIVATE KEY-----' >/root/.ssh/id_rsa"
        " && printf '#!/bin/sh\\n' >/usr/local/bin/gcc && chmod +x /usr/local/bin/gcc"
        " && echo x >/var/lib/apt/lists/x",
        "ENV PATH=/usr/local/bin:$PATH",
    )
    found = findings(own_engine, worse)
    assert (found["private keys"].verdict, found["private keys"].detail) == (Verdict.FAILED, "/root/.ssh/id_rsa")
    assert found["ballast"].verdict is Verdict.WARNING
    assert found["ballast"].detail == "not needed: gcc, /var/lib/apt/lists"


def test_an_image_that_works_for_root_alone(own_engine, image, derive):
    train = "#!/bin/sh\\n[ $(id -u) = 0 ] || { echo root only; exit 3; }\\nexec python -m herringbone_entry\\n"
    found = findings(own_engine, derive(image, f"RUN printf '{train}' >/opt/herringbone/bin/train"))
    assert found["a job"].verdict is Verdict.OK
    assert (found["any user"].verdict, found["any user"].detail) == (Verdict.FAILED, "root only")
    assert found["failure"].verdict is Verdict.OK
