"""GPUs as nvidia-smi lists them, and their assignment to containers."""

import pytest

from herringbone.backends.docker.gpus import find_gpus, split_gpus
from herringbone_contract.errors import UnsupportedError

TWO = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0a11)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1b22)
"""
SLICED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0a11)
  MIG 3g.20gb     Device  0: (UUID: MIG-aa-1)
  MIG 3g.20gb     Device  1: (UUID: MIG-bb-2)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1b22)
"""


@pytest.mark.parametrize(
    ("listing", "visible", "gpus"),
    [
        (TWO, None, ("GPU-0a11", "GPU-1b22")),
        (TWO, "1", ("GPU-1b22",)),
        (TWO, "GPU-1b", ("GPU-1b22",)),
        (TWO, "", ()),
        (SLICED, None, ("MIG-aa-1", "MIG-bb-2", "GPU-1b22")),
        (SLICED, "MIG-bb-2,1", ("MIG-bb-2", "GPU-1b22")),
        ("", None, ()),
    ],
)
def test_the_gpus_of_a_machine(listing, visible, gpus):
    assert find_gpus(listing, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == gpus


def test_an_unknown_gpu_is_named():
    with pytest.raises(UnsupportedError, match="CUDA_VISIBLE_DEVICES names '7'; the GPUs of this machine: 0, 1"):
        find_gpus(TWO, {"CUDA_VISIBLE_DEVICES": "7"})


def test_each_gpu_goes_to_one_host():
    assert split_gpus("abcd", ["algo-1", "algo-2"]) == {"algo-1": ("a", "b"), "algo-2": ("c", "d")}
    assert split_gpus("abc", ["algo-1", "algo-2"]) == {"algo-1": ("a",), "algo-2": ("b",)}
    assert split_gpus("abc", ["algo-1"]) == {"algo-1": ("a", "b", "c")}
    assert split_gpus("", []) == {}


def test_too_few_gpus_are_counted():
    with pytest.raises(
        UnsupportedError, match="2 hosts with at least one GPU each, and this machine has 1 for this job"
    ):
        split_gpus("a", ["algo-1", "algo-2"])
    with pytest.raises(UnsupportedError, match="1 host with at least one GPU each, and this machine has 0"):
        split_gpus("", ["algo-1"])
