"""What there is on this machine: asked by a desk, told to who visits."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from herringbone_contract.errors import EngineError, UnsupportedError

# Inside this range the first host of a job listens for the others; firewalls between hosts must let it through.
CONTROL_PORTS = range(7590, 7690)
# Whose versions must not differ between the hosts of a job.
LIBRARIES = ("torch", "tensorflow", "mxnet", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
_SIOCGIFADDR = 0x8915
_PROGRAM_SECONDS = 20.0


def look(work: Path) -> dict[str, Any]:
    """Return what every job needs to know; takes a millisecond."""
    disk = os.statvfs(work)
    return {
        "machine": platform.node(),
        "user": _user(),
        "address": ssh_address(),
        "interfaces": interfaces(),
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "port": free_port(),
        "gpus": count_gpus(),
        "driver": driver(),
        "libraries": libraries(),
    }


def look_closely() -> dict[str, Any]:
    """Return what a check of machines compares: versions, GPUs, programs; takes a second, for it starts some."""
    gpus = _said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or ""
    return {
        "python": platform.python_version(),
        "system": f"{platform.machine()} {platform.libc_ver()[1]}".strip(),
        "cpus": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "gpu_names": gpus.splitlines(),
        "docker": engine_version(),
        "mpirun": (_said("mpirun", "--version") or "").partition("\n")[0] or None,
    }


def engine_version() -> str | None:
    """Return the version of the machine's container engine, None where none answers."""
    from herringbone.backends.ssh.agent.container_host import engine_here

    try:
        return str(engine_here().get("/version")["Version"])
    except (EngineError, UnsupportedError):
        return None


def count_gpus() -> int:
    """Return how many NVIDIA GPUs there are, without asking a program."""
    return sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia*"))


def driver() -> str | None:
    """Return the version of NVIDIA's driver, None without one."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and "." in word), None)


def libraries() -> dict[str, str]:
    """Return the versions of libraries that must be the same on all machines, by their names.

    From the names of folders: `importlib.metadata` takes 50 ms to import, at each visit.
    """
    found: dict[str, str] = {}
    for place in sys.path:
        with contextlib.suppress(OSError):
            for name, version in installed(os.listdir(place)):  # noqa: PTH208 - names are what is asked for
                if name in LIBRARIES:
                    found.setdefault(name, version)
    return found


def installed(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the packages that a folder of such names has, each with its version. Pure.

    >>> list(installed(["torch-2.13.0+cpu.dist-info", "nvidia_nccl_cu12-2.27.3.dist-info", "torch", "torch.egg-info"]))
    [('torch', '2.13.0+cpu'), ('nvidia-nccl-cu12', '2.27.3')]
    """
    for name in names:
        stem, dot, kind = name.rpartition(".")
        package, dash, version = stem.partition("-")
        if dot and dash and kind in ("dist-info", "egg-info"):
            # An egg says for which Python it was made: torch-2.1.0-py3.11.egg-info
            yield package.lower().replace("_", "-"), version.partition("-")[0]


def ssh_address() -> str | None:
    """Return the address of this machine that an ssh connection came to; None where none brought us here."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2].removeprefix("::ffff:") if len(words) == 4 else None


def interfaces() -> dict[str, str]:
    """Return the network interfaces that are up, each with its IPv4 address. Linux; elsewhere the answer is empty."""
    found: dict[str, str] = {}
    if sys.platform != "linux":
        return found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def free_port(ports: range = CONTROL_PORTS) -> int | None:
    """Return a port of this machine where nobody listens, None where all are taken."""
    for port in ports:
        with socket.socket() as probe:
            # As the listener itself will do: a connection that has just ended does not keep its port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("", port))
                return port
    return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _said(*command: str) -> str | None:
    """Return what a program says, None where it is missing or fails."""
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        ended = subprocess.run(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROGRAM_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None
