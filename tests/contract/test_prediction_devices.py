"""The table of devices."""

import pytest

from herringbone_contract.errors import UsageError
from herringbone_contract.prediction.devices import device_named


@pytest.mark.parametrize(
    ("name", "device"),
    [
        # As NVML reports them.
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA H200", "NVIDIA H200"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 80GB PCIe"),
        ("Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB"),
        ("NVIDIA A10G", "NVIDIA A10G"),
        ("NVIDIA L40S", "NVIDIA L40S"),
        # As people write them: the most common form of a model.
        ("H100", "NVIDIA H100 80GB HBM3"),
        ("h100-sxm5", "NVIDIA H100 80GB HBM3"),
        ("a100-80gb", "NVIDIA A100-SXM4-80GB"),
        ("A100 PCIe", "NVIDIA A100-PCIE-40GB"),
        ("V100", "Tesla V100-SXM2-16GB"),
        ("l4", "NVIDIA L4"),
        ("A10", "NVIDIA A10"),
    ],
)
def test_a_device_is_known_by_its_name_and_by_shorter_ones(name: str, device: str) -> None:
    assert device_named(name).name == device


@pytest.mark.parametrize(
    "name", ["", "L40", "A1", "80GB", "H800", "GeForce RTX 4090", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"]
)
def test_an_unknown_device_asks_for_its_three_figures(name: str) -> None:
    with pytest.raises(UsageError, match=r"--device memory=24GiB,flops=30e12,bandwidth=600e9"):
        device_named(name)


def test_a_part_of_a_gpu_is_named_as_such() -> None:
    with pytest.raises(UsageError, match="part of a GPU"):
        device_named("NVIDIA A100-SXM4-40GB MIG 3g.20gb")


def test_half_precision_is_faster_where_the_device_has_units_for_it() -> None:
    assert "bfloat16" not in device_named("V100").operations_per_second
    assert device_named("A100").operations_per_second["bfloat16"] == 312e12
