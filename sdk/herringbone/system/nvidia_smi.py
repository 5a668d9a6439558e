"""Asks NVIDIA's program `nvidia-smi`: the one place that starts it.

ask("-L")               # its output, None without a driver
gpus()                  # [("NVIDIA A10G", 24146608128)]
"""

from __future__ import annotations

import subprocess

# A driver that is busy may need seconds for an answer.
_SECONDS = 20.0
_QUERY = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_MIB = 1 << 20


def ask(*arguments: str, seconds: float = _SECONDS) -> str | None:
    """Return the output of `nvidia-smi`; None where it is missing, fails, or takes longer than `seconds`."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            # The standard input of an agent is its client's pipe; a program that reads it would take messages.
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def gpus(*, seconds: float = _SECONDS) -> list[tuple[str, int]]:
    """Return name and bytes of memory of each GPU of this machine; empty without an answer."""
    return parse_gpus(ask(*_QUERY, seconds=seconds) or "")


def parse_gpus(answer: str) -> list[tuple[str, int]]:
    """Return name and bytes of memory of each GPU in the answer.

    >>> parse_gpus("NVIDIA A10G, 23028")
    [('NVIDIA A10G', 24146608128)]
    """
    found = []
    for line in answer.splitlines():
        name, _, memory = line.rpartition(",")
        if name and memory.strip().isdigit():
            found.append((name.strip(), int(memory) * _MIB))
    return found
