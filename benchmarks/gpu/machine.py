"""Facts about the machine that a report begins with. Run as a program, it prints those of this Python as JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("torch", "transformers", "accelerate", "numpy", "msgspec")


def facts() -> dict[str, Any]:
    """Return devices, driver, versions, cores and the commit. Imports torch, and starts CUDA."""
    import torch

    from herringbone.system.nvidia_smi import ask

    count = torch.cuda.device_count()
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    driver = (ask("--query-gpu=driver_version", "--format=csv,noheader") or "").splitlines()
    is_cuda = torch.cuda.is_available()
    return {
        "devices": [f"{device.name}, {device.total_memory / 1e9:.1f} GB" for device in properties] or ["cpu"],
        "driver": driver[0].strip() if driver else None,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if is_cuda else None,
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "cores": os.cpu_count(),
        "commit": _commit(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


if __name__ == "__main__":
    json.dump(facts(), sys.stdout)
    print()
