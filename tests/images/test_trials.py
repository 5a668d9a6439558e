"""Trials in real containers: of our image, of an image that cannot run jobs, and of images with defects."""

import pytest

from herringbone.images.check import Verdict, check

pytestmark = pytest.mark.docker


def findings(own_engine, image):
    return {finding.subject: finding for finding in check(own_engine, image)}


def test_our_image_passes(own_engine, image):
    by_subject = findings(own_engine, image)
    assert {
        subject: finding.detail for subject, finding in by_subject.items() if finding.verdict is not Verdict.OK
    } == {}
    assert by_subject["framework"].detail.startswith("pytorch ")
    assert by_subject["any user"].detail == "uid 47110"
    assert by_subject["MPI job"].detail == "two ranks"


def test_an_image_without_train(own_engine, base_image):
    by_subject = findings(own_engine, base_image)
    assert by_subject["contract"].verdict is Verdict.WARNING
    assert by_subject["a job"].verdict is Verdict.FAILED
    assert by_subject["a job"].detail == "the image has no program `train`: install Herringbone in it"
    assert list(by_subject) == ["contract", "a job"]


def test_an_image_with_needless_files(own_engine, image, derive):
    worse = derive(
        image,
        "RUN mkdir -p /root/.ssh && echo '-----BEGIN OPENSSH PRIVATE KEY-----' >/root/.ssh/id_rsa"
        " && printf '#!/bin/sh\\n' >/usr/local/bin/gcc && chmod +x /usr/local/bin/gcc"
        " && echo x >/var/lib/apt/lists/x",
        "ENV PATH=/usr/local/bin:$PATH",
    )
    by_subject = findings(own_engine, worse)
    assert (by_subject["private keys"].verdict, by_subject["private keys"].detail) == (
        Verdict.FAILED,
        "/root/.ssh/id_rsa",
    )
    assert by_subject["ballast"].verdict is Verdict.WARNING
    assert by_subject["ballast"].detail == "not needed: gcc, /var/lib/apt/lists"


def test_an_image_that_works_for_root_alone(own_engine, image, derive):
    train = "#!/bin/sh\\n[ $(id -u) = 0 ] || { echo root only; exit 3; }\\nexec python -m herringbone_entry\\n"
    by_subject = findings(own_engine, derive(image, f"RUN printf '{train}' >/opt/herringbone/bin/train"))
    assert by_subject["a job"].verdict is Verdict.OK
    assert (by_subject["any user"].verdict, by_subject["any user"].detail) == (Verdict.FAILED, "root only")
    assert by_subject["failure"].verdict is Verdict.OK
