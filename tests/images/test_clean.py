"""Removal of outdated images; images in use, or with a name of the user's own, stay."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from herringbone.engine.client import Engine
from herringbone.images.find import clean, outdated


def image(created: int, *names: str, device: str = "cpu", version: str = "2.13.0", **labels: str) -> dict[str, Any]:
    ours = {
        "dev.herringbone.framework": "pytorch",
        "dev.herringbone.version": version,
        "dev.herringbone.device": device,
    }
    tags = [f"herringbone/pytorch:{name}" if ":" not in name else name for name in names] or None
    return {"Id": str(created), "Created": created, "Labels": {**ours, **labels}, "RepoTags": tags}


REQUIREMENTS = {"dev.herringbone.requirements": "0"}


@pytest.mark.parametrize(
    ("listed", "used", "keep", "removed"),
    [
        pytest.param([image(1, "a"), image(3, "c"), image(2, "b")], (), 1, ["a", "b"], id="the newest stays"),
        pytest.param([image(1, "a"), image(3, "c"), image(2, "b")], (), 2, ["a"], id="the newest two"),
        pytest.param([image(1, "a"), image(3, "c"), image(2, "b")], ("1",), 0, ["b", "c"], id="a container's"),
        pytest.param([image(1, "a", "mine:1"), image(2, "b")], (), 1, [], id="one with another name"),
        pytest.param([image(1), image(2, "b")], (), 1, [], id="one without a name belongs to the builder"),
        pytest.param([image(1, "a", device="cuda"), image(2, "b")], (), 1, [], id="every device counts by itself"),
        pytest.param([image(1, "a", version="2.12.0"), image(2, "b")], (), 1, [], id="every version counts by itself"),
        pytest.param(
            [image(1, "a"), image(2, "b"), image(3, "a-with-1", **REQUIREMENTS), image(4, "b-with-1", **REQUIREMENTS)],
            (),
            1,
            ["a-with-1", "a"],
            id="requirements go with the image below",
        ),
    ],
)
def test_outdated_images_are_listed(
    listed: list[dict[str, Any]], used: tuple[str, ...], keep: int, removed: list[str]
) -> None:
    assert outdated(listed, used, keep) == [f"herringbone/pytorch:{name}" for name in removed]


@pytest.mark.docker
def test_outdated_images_are_removed_from_an_engine(
    small_engine: Any, small_own_engine: Engine, tarball: Callable[[dict[str, bytes]], bytes]
) -> None:
    def load(tag: str, created: str) -> None:
        layer = tarball({"made": tag.encode()})
        labels = {"contract": "1", "framework": "pytorch", "device": "cpu", "version": "2.13.0"}
        config = {
            "architecture": small_engine.version()["Arch"],
            "os": "linux",
            "created": created,
            "config": {"Labels": {f"dev.herringbone.{name}": value for name, value in labels.items()}},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
        manifest = [{"Config": "config.json", "RepoTags": [f"herringbone/pytorch:{tag}"], "Layers": ["layer.tar"]}]
        parts = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
        list(small_engine.load_image(io.BytesIO(tarball({**parts, "layer.tar": layer}))))

    for month, tag in enumerate(("old", "used", "new"), start=1):
        load(tag, f"2026-0{month}-01T00:00:00Z")
    small_engine.create_container("herringbone/pytorch:used", "train")
    assert clean(small_own_engine) == ["herringbone/pytorch:old"]
    assert clean(small_own_engine) == []
    names = {name for listed in small_engine.images() for name in listed["RepoTags"]}
    assert names == {"herringbone/pytorch:used", "herringbone/pytorch:new"}
