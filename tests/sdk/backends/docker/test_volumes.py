"""Volumes that an image declares: their places are taken, or they are refused before the job starts."""

from pathlib import Path

import pytest
from tests.sdk.backends.docker.test_request import plan

from herringbone.backends.docker import review
from herringbone.backends.docker.image import Image
from herringbone.backends.docker.volumes import refuse_links, volume_mounts
from herringbone_contract.errors import UnsupportedError

TENSORBOARD = {"tensorboard_output_config": {"s3_output_path": "tb"}}


def image(*volumes):
    return Image("theirs:1", "sha256:0b", is_ours=True, volumes=volumes)


@pytest.mark.parametrize(
    ("volumes", "mounted"),
    [
        (("/opt/ml/model", "/opt/ml/output/"), ["model", "output"]),
        (("/opt/ml/./output//data",), ["output", "output/data"]),
        (("/opt/ml/code", "/opt/ml/../ml/checkpoints"), ["checkpoints", "code"]),
        (("/opt/ml/input/config",), ["input", "input/config"]),
        (("opt/ml/input/data/train",), ["input", "input/data", "input/data/train"]),
        # The engine lays these under the job's mounts, beside them, or where the job has a mount of its own.
        (("/", "/opt", "/opt/ml", "/opt/ml/", "/data", "/tmp", "/opt/ml/input/data/other", "/opt/ml/mine"), []),
        (("/opt/ml/shared", "/opt/herringbone-cache", "/opt/herringbone-data", "/opt/mlx/model"), []),
    ],
)
def test_a_folder_of_the_job_takes_the_place_of_a_volume(volumes, mounted):
    job_plan = plan({"train": "file:///data"})
    mounts = volume_mounts(image(*volumes), job_plan, Path("/jobs/ml"))
    assert [mount.target for mount in mounts] == [f"/opt/ml/{name}" for name in mounted]
    assert [mount.source for mount in mounts] == [f"/jobs/ml/{name}" for name in mounted]
    assert not any(mount.read_only for mount in mounts)


@pytest.mark.parametrize(
    ("volume", "hidden"),
    [
        ("/opt/ml/model/part", "/opt/ml/model"),
        ("/opt/ml/checkpoints/a/b/", "/opt/ml/checkpoints"),
        ("/opt/ml/output/intermediate", "/opt/ml/output"),
        ("/opt/ml/output/data/plots", "/opt/ml/output/data"),
        ("/opt/ml/output/tensorboard", "/opt/ml/output"),
        ("/opt/ml/input/config/hyperparameters.json", "/opt/ml/input/config"),
        ("/opt/ml/input/data/train/images", "/opt/ml/input/data/train"),
        ("/opt/ml/shared/x", "/opt/ml/shared"),
        ("/opt/herringbone-data/train/x", "/opt/herringbone-data/train"),
    ],
)
def test_a_volume_inside_of_a_folder_of_the_contract_is_refused_at_plan(volume, hidden):
    job_plan = plan({"train": "file:///data"})
    with pytest.raises(UnsupportedError) as caught:
        review.check_image(job_plan, image("/data", volume))
    assert str(caught.value) == (
        f"image_uri: theirs:1 declares a volume at {volume.rstrip('/')}, with which the engine would hide that part of "
        f"{hidden} from the job; build the image without that VOLUME"
    )


def test_a_folder_for_tensorboard_has_a_mount_of_its_own():
    volume = image("/opt/ml/output/tensorboard")
    assert volume_mounts(volume, plan(**TENSORBOARD), Path("/jobs/ml")) == []
    with pytest.raises(UnsupportedError, match="hide that part of /opt/ml/output/tensorboard"):
        volume_mounts(image("/opt/ml/output/tensorboard/x"), plan(**TENSORBOARD), Path("/jobs/ml"))


@pytest.mark.parametrize(
    ("links", "volume", "is_refused"),
    [
        ({"/a/b/link": "/opt/ml/model"}, "/a/b/link", True),
        ({"/a": "/b", "/b/link": "../opt/ml"}, "/a/link/model", True),
        # Three parts: the engine would mount it after /opt/ml.
        ({"/a/b/c": "/opt"}, "/a/b/c", True),
        ({"/opt/ml": "/srv/ml"}, "/srv/ml/model", True),
        ({"/opt": "/srv/a/b"}, "/srv/a", True),
        ({"/a/b/link": "/data"}, "/a/b/link", False),
        ({"/opt/ml": "/srv/ml"}, "/srv/data", False),
        ({"/opt/ml": "/srv/ml"}, "/opt/ml/model", False),
        ({}, "/opt", False),
    ],
)
def test_a_volume_that_a_link_leads_to_the_contracts_tree_is_refused(links, volume, is_refused):
    def look():
        refuse_links(image(volume), lambda path: links.get(path, ""))

    if not is_refused:
        look()
        return
    with pytest.raises(UnsupportedError, match=rf"theirs:1 declares a volume at {volume}. By links of the image it is"):
        look()
