"""GPUs of a host, read by `nvidia-ml-py` where it is installed.

A driver may hang, so a thread reads, and nobody waits for the thread: the sampler takes the newest reading, and none
that is old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# A driver that is slow is asked less often: this share of a core, and of the driver's own time.
_MAX_SHARE = 0.002
_INTERVAL_SECONDS = 1.0
_OLD_SECONDS = 10.0
_MAX_GPUS = 64


# Bits of NVML's reasons for a lower clock than asked for; an idle GPU, and a clock that the user chose, are none.
_SLOWED = {
    0x20: "heat",
    0x40: "heat",
    0x04: "its power limit",
    0x80: "the power supply",
    0x08: "the board's protection",
}


class Gpu(NamedTuple):
    """One GPU by NVML's number: `use` from 0 to 1, memory in bytes; None for a reading that it does not give.

    `slowed` says why its clock is lower than asked for, "" if it is not.
    """

    number: int
    name: str
    uuid: str
    use: float | None
    memory: float | None
    memory_total: float | None
    watts: float | None
    celsius: float | None
    slowed: str = ""


def find_nvml() -> Any:
    """Return the module `pynvml`, initialised; None where it, or the driver, is not installed."""
    try:
        import pynvml
    except Exception:  # noqa: BLE001 - a package of the user's, of any age
        return None
    try:
        pynvml.nvmlInit()
        return pynvml if pynvml.nvmlDeviceGetCount() else None
    except Exception:  # noqa: BLE001 - the driver's errors have classes of their own
        return None


def read_gpus(nvml: Any, handles: Mapping[int, Any]) -> list[Gpu]:
    """Read all GPUs once; this may take long, or never return."""
    return [_read(nvml, index, handle) for index, handle in handles.items()]


def visible_handles(nvml: Any, visible: str | None) -> dict[int, Any]:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES` names, by NVML's number; all of them without that variable.

    NVML does not read the variable. A name that is no number is the beginning of a GPU's UUID.
    """
    handles = {
        index: nvml.nvmlDeviceGetHandleByIndex(index) for index in range(min(nvml.nvmlDeviceGetCount(), _MAX_GPUS))
    }
    if visible is None:
        return handles
    chosen = {}
    for name in (word.strip() for word in visible.split(",")):
        # As CUDA reads it: everything from the first unknown name on is hidden.
        matches = [
            index
            for index, handle in handles.items()
            if name == str(index)
            or (name.startswith("GPU-") and _text(nvml.nvmlDeviceGetUUID(handle)).startswith(name))
        ]
        if not matches:
            break
        chosen[matches[0]] = handles[matches[0]]
    return chosen


def _read(nvml: Any, index: int, handle: Any) -> Gpu:
    def reading(read: Callable[[], float]) -> float | None:
        try:
            return read()
        # A MIG device has no utilization, a laptop's GPU no power: each reading may be missing.
        except Exception:  # noqa: BLE001
            return None

    return Gpu(
        number=index,
        name=_called(lambda: nvml.nvmlDeviceGetName(handle)),
        uuid=_called(lambda: nvml.nvmlDeviceGetUUID(handle)),
        use=reading(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
        memory=reading(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
        memory_total=reading(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
        watts=reading(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        celsius=reading(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        slowed=reason_of(int(reading(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0)),
    )


def reason_of(bits: int) -> str:
    """Return why a GPU's clock is lower than asked for; "" if it is not.

    >>> reason_of(0x44), reason_of(0x1)
    ('heat', '')
    """
    return next((reason for bit, reason in _SLOWED.items() if bits & bit), "")


def _called(read: Callable[[], str | bytes]) -> str:
    try:
        return _text(read())[:80]
    except Exception:  # noqa: BLE001
        return ""


def _text(value: str | bytes) -> str:
    # Releases before 11.5 return bytes.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class GpuReader:
    """Reads GPUs once a second in a thread of its own; `find` returns NVML, or None."""

    def __init__(self, visible: str | None, find: Callable[[], Any] = find_nvml) -> None:
        self._visible, self._find = visible, find
        # Written by the thread and read by the loop, whole: one assignment, which needs no lock.
        self._newest: tuple[float, list[Gpu]] = (float("-inf"), [])
        threading.Thread(target=self._run, daemon=True).start()

    def read(self) -> list[Gpu]:
        """Return the newest reading; none if the driver has been silent for a while."""
        read_at, gpus = self._newest
        return gpus if time.monotonic() - read_at < _OLD_SECONDS else []

    def _run(self) -> None:
        nvml = self._find()
        if nvml is None:
            return
        try:
            handles = visible_handles(nvml, self._visible)
            while handles:
                began = time.thread_time()
                self._newest = time.monotonic(), read_gpus(nvml, handles)
                time.sleep(max(_INTERVAL_SECONDS, (time.thread_time() - began) / _MAX_SHARE))
        except Exception:  # noqa: BLE001 - a driver that was reloaded; the readings end, and with them the list
            return
