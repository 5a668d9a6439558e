"""Keep the measured devices of machines, so that `plan` knows them without a connection.

devices = DeviceCache(home.cache / "devices")
devices.keep(machine, facts, today="2026-05-04")
devices.of(machine).device              # None before the first `herringbone hosts check`
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import msgspec

from herringbone.backends.ssh.machines.inventory import Machine
from herringbone_contract.files import write_whole
from herringbone_contract.prediction.devices import Device


class DeviceReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The device of a machine; `trouble` is the reason why its rates are not known.

    `model` is the processor of a machine without GPUs, whose device is named "cpu", and `cores` are those of which the
    rates are.
    """

    name: str
    memory_bytes: int
    operations_per_second: dict[str, float] = {}
    bytes_per_second: float = 0.0
    model: str = ""
    cores: int | None = None
    trouble: str = ""


class MeasuredDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device, how many of them the machine has, and the day of the measurement, as 2026-05-04.

    `cores` is the number of a processor's cores, None for a GPU and in a file of an older release.
    """

    machine: str
    device: Device
    devices: int = 1
    cores: int | None = None
    measured: str


class DeviceCache:
    """The measured devices of machines, one file for each in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, machine: Machine, report: DeviceReport, *, today: str, devices: int = 1) -> None:
        """Keep the device of a machine that has so many of them; nothing is kept of a report without rates.

        No error: the check is over by then.
        """
        if not report.operations_per_second:
            return
        device = Device(
            name=report.name,
            memory_bytes=report.memory_bytes,
            operations_per_second=report.operations_per_second,
            bytes_per_second=report.bytes_per_second,
            # These are reached rates rather than peaks; smaller operations than the measured ones reach less.
            fraction=0.9,
        )
        measured = MeasuredDevice(
            machine=machine.name, device=device, devices=devices, cores=report.cores, measured=today
        )
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._path(machine), msgspec.json.encode(measured))

    def of(self, machine: Machine) -> MeasuredDevice | None:
        """Return the device of a machine as it was measured last; None if it was not, or the file is damaged."""
        try:
            return msgspec.json.decode(self._path(machine).read_bytes(), type=MeasuredDevice)
        except (OSError, UnicodeDecodeError, msgspec.DecodeError):
            return None

    def _path(self, machine: Machine) -> Path:
        # Two inventories may give one machine different names, and its user decides which torch is there.
        key = f"{machine.user or ''}@{machine.destination}:{machine.port or ''} {machine.python}"
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
