"""Thin probes of a host: memory, disks, GPUs by their driver, and what the kernel's log says about them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from herringbone_entry.health.memory import LIMIT_FILES, meminfo_bytes, smallest
from herringbone_entry.observer.gpus import find_nvml, reason_of, visible_handles
from herringbone_entry.preparation.devices import memory_groups

# Less cannot hold a checkpoint of the smallest model, or a batch of a data loader.
_WRITTEN_BYTES = 1 << 20
# Other errors, such as of a folder that is not there, stop no job.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_XID = re.compile(r"^\d+,\d+,(\d+),.*NVRM: Xid \(.*?\): (\d+),", re.DOTALL)
_UNCORRECTED, _SINCE_START = 1, 0


def look(folders: Sequence[str], root: Path = Path("/")) -> dict[str, Any]:
    """Return the part of a host's report that needs no framework; `root` is the root of its file system."""
    report: dict[str, Any] = {"disks": {folder: write_error(folder) for folder in folders}, "boards": boards()}
    available, total = meminfo_bytes(root, "MemAvailable"), meminfo_bytes(root, "MemTotal")
    if available is not None and total is not None:
        limit = smallest(memory_groups(root), LIMIT_FILES) or total
        report["memory"] = [min(available, limit), min(total, limit)]
    with contextlib.suppress(OSError):
        report["xids"] = xids(kernel_records(root / "dev/kmsg"), time.clock_gettime(time.CLOCK_BOOTTIME))
    return report


def write_error(folder: str) -> str:
    """Write a file without a name into a folder; return the system's error where the disk is full or broken."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_WRITTEN_BYTES))
            file.flush()
            # A quota, or a full server of files, shows no earlier.
            os.fsync(file.fileno())
    except OSError as error:
        return (error.strerror or str(error)) if error.errno in _FULL else ""
    return ""


def kernel_records(path: Path) -> list[str]:
    """Return the records of the kernel's log. Raises `OSError` where this user may not read them."""
    records: list[str] = []
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while record := os.read(descriptor, 8192):
            records.append(record.decode("utf-8", "replace"))
    except BlockingIOError:
        pass  # the end of the log
    finally:
        os.close(descriptor)
    return records


def xids(records: Sequence[str], now: float) -> list[tuple[int, float]]:
    """Return the number and the age of each Xid among records of /dev/kmsg; `now` counts from the machine's start.

    >>> xids(["3,9,60000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."], 180.0)
    [(79, 120.0)]

    Source: the kernel's Documentation/ABI/testing/dev-kmsg; NVIDIA's "Xid Errors".
    """
    return [(int(match[2]), now - int(match[1]) / 1e6) for record in records if (match := _XID.match(record))]


def boards() -> list[dict[str, Any]]:
    """Return what NVIDIA's driver says about each GPU that this process may use."""
    nvml = find_nvml()
    if nvml is None:
        return []
    handles = visible_handles(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return [board(nvml, number, handle) for number, handle in handles.items()]


def board(nvml: Any, number: int, handle: Any) -> dict[str, Any]:
    """Return what the driver says about one GPU; a reading that it does not have is as good as none."""

    def reading(read: Callable[[], Any], default: Any) -> Any:
        try:
            return read()
        except Exception:  # noqa: BLE001 - the driver's errors have classes of their own
            return default

    name = reading(lambda: nvml.nvmlDeviceGetName(handle), "")
    _, _, pending, failed = reading(lambda: nvml.nvmlDeviceGetRemappedRows(handle), (0, 0, 0, 0))
    remapped = "rows of its memory wait for a reset to be replaced" if pending else ""
    return {
        "number": number,
        "name": name.decode("utf-8", "replace") if isinstance(name, bytes) else name,
        "slowed": reason_of(int(reading(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle), 0))),
        "uncorrected": reading(lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _SINCE_START), 0),
        "remapped": "rows of its memory could not be replaced" if failed else remapped,
    }
