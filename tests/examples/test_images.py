"""examples/resnet_imagenet: images from folders and shards, and the errors for wrong data."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

Load = Callable[[str, str], ModuleType]


@pytest.fixture
def images(module: Load) -> ModuleType:
    return module("resnet_imagenet/src", "images")


def picture(shade: int, width: int = 4, height: int = 4) -> bytes:
    return b"P5\n# made here\n%d %d\n255\n" % (width, height) + bytes([shade] * width * height)


def shard(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def test_a_folder_for_each_class(tmp_path: Path, images: ModuleType) -> None:
    for name, shade in (("dog/1.pgm", 255), ("cat/2.pgm", 51), ("cat/1.pgm", 0)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(picture(shade))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    data = images.Images(tmp_path, size=4)
    assert [(round(float(image.mean()), 3), int(label)) for image, label in (data[index] for index in range(3))] == [
        (0.0, 0),
        (0.2, 0),
        (1.0, 1),
    ]


def test_shards_are_read_where_their_images_lie(tmp_path: Path, images: ModuleType) -> None:
    shard(tmp_path / "b.tar", {"7.pgm": picture(51), "7.cls": b"2\n"})
    shard(tmp_path / "a.tar", {"x/1.cls": b"0", "x/1.pgm": picture(255), "x/2.pgm": picture(0), "x/2.cls": b"1"})
    data = images.Images(tmp_path, size=4)
    assert data.labels.tolist() == [0, 1, 2]
    assert [round(float(data[index][0].mean()), 3) for index in (2, 0, 1)] == [0.2, 1.0, 0.0]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"1.pgm": b"", "2.cls": b"1"}, r"a.tar: 1 has no .cls file"),
        ({"2.cls": b"1"}, r"a.tar: 2 has no image"),
        ({"1.pgm": b"", "1.cls": b"cat"}, r"a.tar: 1.cls contains b'cat'; it must be the number of a class"),
        ({}, "no images, neither"),
    ],
)
def test_a_shard_that_is_wrong_is_named(
    tmp_path: Path, images: ModuleType, members: dict[str, bytes], message: str
) -> None:
    shard(tmp_path / "a.tar", members)
    with pytest.raises(images.DataError, match=message):
        images.find(tmp_path)


def test_the_test_split_has_the_classes_of_the_training(tmp_path: Path, images: ModuleType) -> None:
    for name in ("train/cat/1.pgm", "train/dog/1.pgm", "test/dog/2.pgm"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(picture(1))
    classes = images.Images(tmp_path / "train", size=4).classes
    # "dog" is the only folder of the test split, but the second class of the training split.
    assert images.Images(tmp_path / "test", size=4, classes=classes).labels.tolist() == [1]
    (tmp_path / "test" / "cow").mkdir()
    with pytest.raises(images.DataError, match=r"test/cow is not a class of the training split, which has cat, dog"):
        images.find(tmp_path / "test", classes)
    shard(tmp_path / "a.tar", {"1.pgm": picture(0), "1.cls": b"2"})
    with pytest.raises(
        images.DataError, match=r"a.tar: 1.pgm is of class 2, but the training split has classes 0 to 1"
    ):
        images.find(tmp_path, classes)


def test_a_shard_that_cannot_be_read_in_place_is_named(tmp_path: Path, images: ModuleType) -> None:
    with tarfile.open(tmp_path / "a.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("1.pgm"))
    with pytest.raises(images.DataError, match=r"a.tar is not a tar file, or truncated, or compressed"):
        images.find(tmp_path)


def test_a_broken_image_in_a_shard_is_named_with_its_place(tmp_path: Path, images: ModuleType) -> None:
    shard(tmp_path / "a.tar", {"x/1.pgm": picture(3)[:-1], "x/1.cls": b"0"})
    with pytest.raises(images.DataError, match=r"a.tar: x/1.pgm: 15 bytes of pixels"):
        images.Images(tmp_path, size=4)[0]


def test_an_image_that_is_cut_short_is_named(images: ModuleType) -> None:
    with pytest.raises(images.DataError, match=r"cat.pgm: 15 bytes of pixels for 4 x 4 x 1"):
        images.decode(picture(3)[:-1], "cat.pgm")
    colours = images.decode(b"P6 1 1 255\n" + bytes([255, 0, 51]), "red.ppm")
    assert colours.flatten().tolist() == pytest.approx([1.0, 0.0, 0.2])


def test_an_image_is_scaled_and_its_middle_cut_out(images: ModuleType) -> None:
    image = torch.zeros(1, 8, 16)
    image[:, :, 4:12] = 1
    assert torch.equal(images.resize(image, 8), torch.ones(1, 8, 8))
    assert images.resize(image, 4).shape == (1, 4, 4)
    assert images.resize(image, 20).shape == (1, 20, 20)


def test_crops_depend_on_the_seed_the_epoch_and_the_image_alone(tmp_path: Path, images: ModuleType) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.pgm").write_bytes(b"P5 16 16 255\n" + bytes(range(256)))
    data, other = (images.Images(tmp_path, size=8, seed=3) for _ in range(2))
    first = data[0][0]
    other.begin(1)
    assert not torch.equal(first, other[0][0])
    other.begin(0)
    assert torch.equal(first, other[0][0])
