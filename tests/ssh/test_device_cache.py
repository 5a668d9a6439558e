"""The measured devices of machines are kept between commands."""

import json
import sys
from pathlib import Path

import pytest

from herringbone.backends.ssh.agent import device_rates
from herringbone.backends.ssh.inspection.check import CheckReport, MachineReport, keep_devices
from herringbone.backends.ssh.machines.device_cache import DeviceCache, DeviceReport
from herringbone.backends.ssh.machines.inventory import Machine, parse_inventory
from herringbone.cli.machines.hosts import table
from herringbone.prediction.machines import figures_of

REPORT = DeviceReport(
    name="NVIDIA A10G",
    memory_bytes=24 << 30,
    operations_per_second={"float32": 2.5e13, "bfloat16": 6e13},
    bytes_per_second=5e11,
)
UNKNOWN = DeviceReport(name="cpu", memory_bytes=8 << 30, model="EPYC", trouble="its Python has no torch")


def test_a_measured_device_is_found_with_its_day(tmp_path: Path) -> None:
    cache, machine = DeviceCache(tmp_path / "devices"), Machine(name="gpu-1")
    assert cache.of(machine) is None
    cache.keep(machine, REPORT, today="2026-05-04")
    known = DeviceCache(tmp_path / "devices").of(machine)
    assert known is not None
    assert (known.measured, known.device.name, known.device.bytes_per_second) == ("2026-05-04", "NVIDIA A10G", 5e11)
    # Another user of the same machine may have another torch.
    assert cache.of(Machine(name="gpu-1", user="other")) is None


def test_a_device_without_rates_replaces_nothing_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    cache, machine = DeviceCache(tmp_path), Machine(name="gpu-1")
    cache.keep(machine, REPORT, today="2026-05-04")
    cache.keep(machine, UNKNOWN, today="2026-05-05")
    known = cache.of(machine)
    assert known is not None
    assert known.measured == "2026-05-04"
    for damaged in (b"{", b'{"machine": "\xff"}'):
        next(tmp_path.iterdir()).write_bytes(damaged)
        assert cache.of(machine) is None


def test_a_check_keeps_and_shows_devices(tmp_path: Path) -> None:
    inventory = parse_inventory({"hosts": ["a", "b", "c"]}, "h")
    reports = [
        MachineReport(name="a", device=REPORT),
        MachineReport(name="b", device=UNKNOWN),
        MachineReport(name="c", trouble="no such host"),
    ]
    report = CheckReport(machines=reports, pairs=[], problems=[])
    cache = DeviceCache(tmp_path)
    keep_devices(inventory, report, cache, today="2026-05-04")
    assert [cache.of(machine) is not None for machine in inventory.machines] == [True, False, False]
    lines = table(report)[5:]
    assert lines[0].split() == ["HOST", "DEVICE", "MEMORY", "TFLOP/S", "BANDWIDTH"]
    assert "25 float32, 60 bfloat16" in lines[1]
    assert "500 GB/s" in lines[1]
    assert "cpu (EPYC)" in lines[2]
    assert "its Python has no torch" in lines[2]
    assert len(lines) == 3


def test_a_machine_without_torch_tells_name_and_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    device_rates.main()
    facts = json.loads(capsys.readouterr().out)
    assert facts["name"]
    assert facts["memory_bytes"] > 0
    assert facts["cores"] >= 1
    assert "torch" in facts["trouble"]
    assert "operations_per_second" not in facts


def test_the_error_of_the_measurement_is_told(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho 'torch.OutOfMemoryError: no memory left' >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o700)
    facts = device_rates.measured(str(tmp_path / "python"))
    assert facts["trouble"] == "its speed was not measured: torch.OutOfMemoryError: no memory left"


def test_the_gpus_that_a_check_has_seen_are_counted(tmp_path: Path) -> None:
    inventory = parse_inventory({"hosts": ["a"]}, "h")
    cache = DeviceCache(tmp_path)
    report = MachineReport(name="a", device=REPORT, gpu_names=("NVIDIA A10G",) * 4)
    keep_devices(inventory, CheckReport(machines=[report], pairs=[], problems=[]), cache, today="2026-05-04")
    figures = figures_of(list(inventory.machines), cache.of)
    assert figures is not None
    assert figures.devices == 4


def test_the_slowest_of_unlike_machines_stands_for_all(tmp_path: Path) -> None:
    machines = list(parse_inventory({"hosts": ["a", "b", "c"]}, "h").machines)
    cache = DeviceCache(tmp_path)
    slow = DeviceReport(
        name="cpu", memory_bytes=64 << 30, operations_per_second={"float32": 1e11}, bytes_per_second=1e10, cores=4
    )
    fast = DeviceReport(
        name="cpu", memory_bytes=16 << 30, operations_per_second={"float32": 9e11}, bytes_per_second=9e10, cores=32
    )
    cache.keep(machines[0], fast, today="2026-05-04")
    cache.keep(machines[1], slow, today="2026-05-04")
    figures = figures_of(machines, cache.of)
    assert figures is not None
    # The slower machine computes, and the smaller one holds the least; nobody knows the third.
    assert (figures.device.operations_per_second, figures.cores) == ({"float32": 1e11}, 4)
    assert figures.device.memory_bytes == 16 << 30
