"""The GPUs and the network of instance types."""

import pytest

from herringbone.aws.instance_types import accelerators


@pytest.mark.parametrize(
    ("instance_type", "device", "gpus", "gbit"),
    [
        ("ml.p3.2xlarge", "Tesla V100-SXM2-16GB", 1, 2.5),
        ("ml.p4d.24xlarge", "NVIDIA A100-SXM4-40GB", 8, 400),
        ("ml.p5.48xlarge", "NVIDIA H100 80GB HBM3", 8, 3200),
        ("ml.g4dn.12xlarge", "Tesla T4", 4, 50),
        ("ml.g6e.12xlarge", "NVIDIA L40S", 4, 100),
    ],
)
def test_an_instance_type_has_devices_and_a_network(instance_type: str, device: str, gpus: int, gbit: float) -> None:
    known = accelerators(instance_type)
    assert known is not None
    assert (known.device.name, known.gpus, known.network_bytes_per_second) == (device, gpus, gbit * 1e9 / 8)


@pytest.mark.parametrize(
    "instance_type", ["ml.c5.xlarge", "ml.c6g.4xlarge", "local", "ml.p9.48xlarge", "ml.p4d.xlarge"]
)
def test_a_type_without_gpus_or_unknown_has_none(instance_type: str) -> None:
    assert accelerators(instance_type) is None
