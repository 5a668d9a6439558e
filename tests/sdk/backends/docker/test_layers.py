"""Layers over channels: where there can be one, and what the engine is asked for."""

import pytest

from herringbone.backends.docker.layers import (
    Disk,
    can_overlay,
    make_layers,
    parse_disks,
    volume_of,
    with_layers,
)
from herringbone.backends.docker.tree import Mount

INFO = {"OSType": "linux", "KernelVersion": "6.1.0", "SecurityOptions": ["name=seccomp,profile=builtin"]}
ROOT = Disk("/", "ext4")


def mount(source="/mine/data", layer="/mine/job/layers/algo-1/training"):
    return Mount(source, "/opt/ml/input/data/training", read_only=True, layer=layer)


def has_layer(disks, **options):
    (only,) = with_layers([mount(**options)], disks)
    assert only.read_only
    return only.layer is not None


def test_the_engines_that_make_overlays():
    assert can_overlay(INFO, "6.1.0")
    assert not can_overlay(INFO, "6.2.0")
    assert not can_overlay({**INFO, "BuildahVersion": "1.28"}, "6.1.0")
    assert not can_overlay({**INFO, "SecurityOptions": ["name=seccomp", "name=rootless"]}, "6.1.0")
    assert not can_overlay({}, "6.1.0")


@pytest.mark.parametrize(
    ("disks", "expected"),
    [
        ([ROOT], True),
        ([], False),
        ([ROOT, Disk("/mine", "xfs")], True),
        ([ROOT, Disk("/mine/data", "nfs4")], False),
        ([ROOT, Disk("/mine/job", "overlay")], False),
        # Disks below the channel would be empty folders; those next to it do not count.
        ([ROOT, Disk("/mine/data/more", "ext4")], False),
        ([ROOT, Disk("/mine/data-2", "nfs4")], True),
        # The later one hides the earlier one.
        ([ROOT, Disk("/mine", "nfs4"), Disk("/mine", "ext4")], True),
    ],
)
def test_the_disks_that_can_have_layers(disks, expected):
    assert has_layer(disks) == expected


@pytest.mark.parametrize("name", ["a,b", "a:b", "a\\b", 'a"b', "a" * 4000])
def test_names_that_the_kernel_would_split(name):
    assert not has_layer([ROOT], source=f"/mine/{name}")


def test_a_job_inside_of_its_own_data_has_no_layer():
    assert not has_layer([ROOT], source="/mine")
    assert not has_layer([ROOT], source="/mine/job", layer="/mine/job/layers")


def test_the_volume_of_a_layer_has_no_name(tmp_path):
    made = mount(layer=str(tmp_path / "layers"))
    make_layers([made, Mount("/a", "/b")])
    assert sorted(path.name for path in (tmp_path / "layers").iterdir()) == ["upper", "work"]
    request = volume_of(made)
    # Without a name, the engine removes it with its container.
    assert sorted(request) == ["Target", "Type", "VolumeOptions"]
    layer = tmp_path / "layers"
    assert request["VolumeOptions"]["DriverConfig"]["Options"] == {
        "type": "overlay",
        "device": "overlay",
        "o": f"lowerdir=/mine/data,upperdir={layer}/upper,workdir={layer}/work",
    }


def test_the_disks_of_the_kernels_table():
    text = (
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "36 22 0:31 / /mnt/a\\040b rw shared:2 master:3 - nfs4 server:/a rw\n"
    )
    assert parse_disks(text) == [ROOT, Disk("/mnt/a b", "nfs4")]
