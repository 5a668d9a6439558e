"""Measure this machine's device: arithmetic by dtype and memory bandwidth, with the torch that jobs use here.

    python -m herringbone.backends.ssh.agent.device_rates

A program of its own, because torch takes seconds to import and its memory should not stay with the agent. It prints one
JSON object. Without torch the object has the name and the memory alone, and the reason.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from herringbone.system import nvidia_smi

_TIMEOUT_SECONDS = 120.0
_REPEATS = 5
_SECONDS = 0.5
# Large enough that the start of an operation costs nothing.
_WIDTHS = {"cuda": 8192, "cpu": 1024}
_COPIED_BYTES = {"cuda": 1 << 30, "cpu": 1 << 27}
_DTYPES = {"cuda": ("float32", "float16", "bfloat16"), "cpu": ("float32", "bfloat16")}


def measured(python: str = sys.executable) -> dict[str, Any]:
    """Return the facts that the program prints, run by `python`; `trouble` is the reason why it has no rates.

    >>> measured()                                                          # doctest: +SKIP
    {'name': 'NVIDIA A100-SXM4-40GB', 'memory_bytes': 42405855232, 'operations_per_second': {...}, ...}
    """
    command = [python, "-m", "herringbone.backends.ssh.agent.device_rates"]
    try:
        # -m looks for modules in the current folder first, and the agent's is the user's own.
        done = subprocess.run(
            command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        why = f"it takes longer than {_TIMEOUT_SECONDS:.0f} s"
    except OSError as error:
        why = str(error)
    else:
        with contextlib.suppress(ValueError):
            return cast("dict[str, Any]", json.loads(done.stdout))
        # Such as the error of a GPU that has no memory left.
        why = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return {**_without_torch(), "trouble": f"its speed was not measured: {why}"}


def main() -> None:
    """Measure the device and print its facts."""
    try:
        # By name: the agent itself, and all else of this package, run without torch.
        torch = importlib.import_module("torch")
    except ImportError:
        facts = {**_without_torch(), "trouble": "its speed was not measured: its Python has no torch"}
    else:
        facts = _rates(torch)
    print(json.dumps(facts))


def _rates(torch: Any) -> dict[str, Any]:
    on_gpu = torch.cuda.is_available()
    kind = "cuda" if on_gpu else "cpu"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    rates = {}
    width = _WIDTHS[kind]
    for dtype in _DTYPES[kind]:
        matrix = torch.ones(width, width, dtype=getattr(torch, dtype), device=kind)
        rates[dtype] = 2 * width**3 / _least_seconds(partial(torch.matmul, matrix, matrix), wait)
    source = torch.ones(_COPIED_BYTES[kind] // 4, device=kind)
    target = torch.zeros_like(source)
    # A copy reads and writes.
    bandwidth = 2 * _COPIED_BYTES[kind] / _least_seconds(partial(target.copy_, source), wait)
    known = _without_torch()
    if on_gpu:
        properties = torch.cuda.get_device_properties(0)
        known = {"name": properties.name, "memory_bytes": properties.total_memory}
    return {**known, "operations_per_second": rates, "bytes_per_second": bandwidth}


def _least_seconds(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Return the shortest time of a call: what other programs take is no property of the device."""
    call()
    wait()
    times: list[float] = []
    until = time.perf_counter() + _SECONDS
    while len(times) < _REPEATS or time.perf_counter() < until:
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
    return min(times)


def _without_torch() -> dict[str, Any]:
    """Return the device's name and memory as the system reports them."""
    for name, size in nvidia_smi.gpus():
        return {"name": name, "memory_bytes": size}
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # The user may be allowed fewer cores than the machine has, and the rates are those of the allowed ones.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"name": "cpu", "memory_bytes": pages, "model": _processor(), "cores": cores}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    main()
