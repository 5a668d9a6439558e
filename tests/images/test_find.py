"""The choice of an image for a job that names none."""

import pytest

from herringbone.images.find import choose


def image(created, *names, version="2.13.0", **labels):
    ours = {"dev.herringbone.framework": "pytorch", "dev.herringbone.version": version}
    return {"Created": created, "Labels": {**ours, **labels}, "RepoTags": list(names) or None}


def test_the_newest_image_is_chosen():
    listed = [image(1, "herringbone/pytorch:a"), image(3, "herringbone/pytorch:b"), image(2, "herringbone/pytorch:c")]
    assert choose(listed, None) == "herringbone/pytorch:b"


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (None, "herringbone/pytorch:new"),
        ("2.13", "herringbone/pytorch:new"),
        ("2.1", "herringbone/pytorch:old"),
        ("2", "herringbone/pytorch:new"),
        ("2.1.2", "herringbone/pytorch:old"),
        ("2.130", None),
        ("3", None),
    ],
)
def test_a_version_is_matched_part_by_part(version, name):
    listed = [image(2, "herringbone/pytorch:new"), image(1, "herringbone/pytorch:old", version="2.1.2")]
    assert choose(listed, version) == name


@pytest.mark.parametrize("name", ["mine:1", "mine/pytorch:1", "myherringbone/pytorch:1", "herringbone/other:1"])
def test_an_image_derived_from_ours_is_not_chosen(name):
    assert choose([image(2, name), image(1, "herringbone/pytorch:a")], None) == "herringbone/pytorch:a"


def test_an_image_with_requirements_is_not_chosen():
    baked = image(2, "herringbone/pytorch:b", **{"dev.herringbone.requirements": "0a"})
    assert choose([baked], None) is None


def test_a_pulled_image_counts_and_its_short_name_is_preferred():
    assert choose([image(1, "registry:5000/herringbone/pytorch:a")], None) == "registry:5000/herringbone/pytorch:a"
    both = image(1, "registry:5000/herringbone/pytorch:a", "herringbone/pytorch:a")
    assert choose([both], None) == "herringbone/pytorch:a"


def test_an_image_without_a_name_is_not_chosen():
    assert choose([image(1)], None) is None
