"""Builds by a real engine: refusals, and no second build of the same image."""

import os

import pytest

from herringbone.images.build import build
from herringbone.images.recipe import make_recipe
from herringbone_contract.errors import ImageError

pytestmark = pytest.mark.docker


def refusal(own_engine, base):
    lines = []
    with pytest.raises(ImageError) as raised:
        build(own_engine, make_recipe("pytorch", base=base), lines.append)
    return str(raised.value)


def test_an_unchanged_image_is_not_built_again(engine, image, build_image):
    name = build_image()
    created = engine.inspect_image(name)["Created"]
    assert build_image() == name
    assert engine.inspect_image(name)["Created"] == created


def test_a_base_that_cannot_be_pulled(own_engine):
    message = refusal(own_engine, "127.0.0.1:1/no-such-base:1")
    assert message.startswith("the base image 127.0.0.1:1/no-such-base:1 is not on this engine, and cannot be pulled: ")
    assert "--base-image" in message


def test_a_base_of_another_architecture(own_engine, import_image):
    base = import_image({"bin/sh": b""}, architecture="s390x")
    message = refusal(own_engine, base)
    assert f"the base image {base} is for linux/s390x, this engine runs linux/" in message
    assert "docker pull --platform" in message


def test_a_base_with_neither_python_nor_apt(own_engine, base_image, derive):
    message = refusal(own_engine, derive(base_image, "RUN rm /usr/bin/apt-get"))
    assert "The base image needs Python 3.10 or newer, or apt to install it with" in message
    assert "neither python3 nor apt-get" in message.splitlines()[-1]


def test_a_base_with_an_old_python(own_engine, base_image, derive):
    base = derive(base_image, r"RUN printf '#!/bin/sh\nexit 1\n' >/usr/bin/python3 && chmod +x /usr/bin/python3")
    assert "Take a --base-image with Python 3.10 or newer" in refusal(own_engine, base)


def test_a_base_without_a_shell(own_engine, import_image):
    assert "The base image has no shell" in refusal(own_engine, import_image({"hello": b""}))


def test_a_failed_build_leaves_no_name(engine, own_engine, import_image):
    recipe = make_recipe("pytorch", base=import_image({"hello": b""}))
    with pytest.raises(ImageError):
        build(own_engine, recipe, lambda line: None)
    assert not engine.images(name=recipe.tag(engine.inspect_image(recipe.base)["Id"]))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start an engine on a small disk")
def test_a_full_disk(small_engine, small_own_engine, tarball, tmp_path):
    small_engine.import_image_from_data(tarball({"hello": b""}), repository="tiny", tag="1")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with (wheels / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").open("wb") as wheel:
        wheel.truncate(128 << 20)
    with pytest.raises(ImageError, match=r"The disk is full\. The engine keeps images in .*small: `docker system df`"):
        build(small_own_engine, make_recipe("pytorch", base="tiny:1", wheelhouse=wheels), lambda line: None)
