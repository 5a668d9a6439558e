"""Facts about this machine, collected by the agent: addresses, GPUs, programs, versions."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import importlib.util
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

from herringbone.backends.ssh.agent.store import machine_engine
from herringbone.system import nvidia_smi
from herringbone_contract.errors import EngineError, UnsupportedError

# The first host of a job listens on a port of this range; firewalls between hosts must let the range through.
CONTROL_PORTS = range(7590, 7690)
# Libraries whose versions must be the same on all hosts of a job.
LIBRARIES = ("torch", "tensorflow", "mxnet", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
_SIOCGIFADDR = 0x8915
_PROGRAM_SECONDS = 20.0


def host_facts(work: Path) -> dict[str, Any]:
    """Return the facts that every job needs; takes a millisecond."""
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
        # A machine that sends checkpoints to S3 needs it.
        "boto3": importlib.util.find_spec("boto3") is not None,
    }


def detailed_facts() -> dict[str, Any]:
    """Return the facts that only a check of machines needs; takes a second, because it starts programs."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.machine()} {platform.libc_ver()[1]}".strip(),
        # The user may be allowed fewer CPUs than the machine has.
        "cpus": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "gpu_names": [name for name, _ in nvidia_smi.gpus()],
        "docker": engine_version(),
        "mpirun": (_output("mpirun", "--version") or "").partition("\n")[0] or None,
    }


def engine_version() -> str | None:
    """Return the version of the machine's container engine; None when no engine answers."""
    try:
        return str(machine_engine().get("/version")["Version"])
    except (EngineError, UnsupportedError):
        return None


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs."""
    # From the device files: every job asks, and starting nvidia-smi takes much longer.
    return sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia*"))


def driver() -> str | None:
    """Return the version of NVIDIA's driver; None without a driver."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and "." in word), None)


def libraries() -> dict[str, str]:
    """Return the versions of the libraries that must be the same on all machines, by name."""
    # From the names of folders: importing `importlib.metadata` would cost every connection 50 ms.
    versions: dict[str, str] = {}
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name, version in installed(os.listdir(folder)):  # noqa: PTH208 - the names are enough
                if name in LIBRARIES:
                    # The first folder wins, as in an import.
                    versions.setdefault(name, version)
    return versions


def installed(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the installed packages and their versions, from the names of a folder's entries. Pure.

    >>> list(installed(["torch-2.13.0+cpu.dist-info", "nvidia_nccl_cu12-2.27.3.dist-info", "torch", "torch.egg-info"]))
    [('torch', '2.13.0+cpu'), ('nvidia-nccl-cu12', '2.27.3')]
    """
    for name in names:
        stem, dot, kind = name.rpartition(".")
        package, dash, version = stem.partition("-")
        if dot and dash and kind in ("dist-info", "egg-info"):
            # The name of an egg also has the Python it was made for: torch-2.1.0-py3.11.egg-info
            yield package.lower().replace("_", "-"), version.partition("-")[0]


def ssh_address() -> str | None:
    """Return the address of this machine that the ssh connection used; None without an ssh connection."""
    # Client address, client port, server address, server port. IPv4 may appear mapped into IPv6.
    fields = os.environ.get("SSH_CONNECTION", "").split()
    return fields[2].removeprefix("::ffff:") if len(fields) == 4 else None


def interfaces() -> dict[str, str]:
    """Return the network interfaces and their IPv4 addresses; empty on other systems than Linux."""
    addresses: dict[str, str] = {}
    if sys.platform != "linux":
        return addresses
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            # The kernel answers with an error for an interface that has no IPv4 address.
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                addresses[name] = socket.inet_ntoa(answer[20:24])
    return addresses


def free_port(ports: range = CONTROL_PORTS) -> int | None:
    """Return a port of this machine on which no program listens; None when all are taken."""
    # Jobs that share a machine ask at the same time, and must not all get the first port.
    begin = os.getpid() % len(ports)
    for port in (*ports[begin:], *ports[:begin]):
        with socket.socket() as probe:
            # The later listener sets this option as well: a connection that has just ended does not block its port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("", port))
                return int(port)
    return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _output(*command: str) -> str | None:
    """Return the output of a program; None when the program is missing or fails."""
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        result = subprocess.run(
            [path, *command[1:]],
            # Our standard input is the client's pipe; a program that reads it would take messages.
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROGRAM_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
