"""Collect the facts about this machine. Each probe changes nothing, and imports no framework."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from herringbone.aws.credentials import find_credentials, find_region, problem_of_files, stands_in
from herringbone.doctor.facts import Aws, Disk, Engine, Framework, Gpus, OpenFiles, Ports, Program, Python, Ssh
from herringbone.records.home import find_home
from herringbone.system import nvidia_smi
from herringbone.system.packages import installed_version
from herringbone.system.user_paths import home_folder
from herringbone_contract.errors import EngineError, HerringboneError, UnsupportedError

# Shorter than the examination itself, so that a program that hangs leaves nothing behind.
_PROGRAM_SECONDS = 1.5
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_QUERY = ("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
# Distributions that install a package of that name.
_WHEELS = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "mxnet": ("mxnet", "mxnet-cu112")}


def find_python() -> Python:
    """Return the Python that runs this program."""
    return Python(sys.version_info[:3], sys.executable, sys.platform)


def find_torch() -> Framework | None:
    """Return PyTorch's version and the CUDA that it was built for, from its files: importing it takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        text = Path(spec.submodule_search_locations[0], "version.py").read_text(encoding="utf-8")
    except OSError:
        text = ""
    cuda = re.search(r"^cuda\b.*=\s*'([^']+)'", text, re.MULTILINE)
    return Framework(installed_version("torch") or "unknown", cuda[1] if cuda else None, count_gpus())


def find_framework(name: str) -> Framework | None:
    """Return the version of TensorFlow or MXNet."""
    version = installed_version(*_WHEELS[name])
    return None if version is None else Framework(version)


def find_mpi() -> Program | None:
    """Return the mpirun that the supervisor of a job would choose.

    The order is that of `herringbone_entry.launchers.mpi`: `HERRINGBONE_MPIRUN`, PATH, the folder of this Python.
    """
    override = os.environ.get("HERRINGBONE_MPIRUN")
    for name in [override] if override else ["mpirun", str(Path(sys.executable).with_name("mpirun"))]:
        if path := shutil.which(name):
            return Program(path, _answer(path, "--version") or "")
    return None


def find_engine() -> Engine | str | None:
    """Return the container engine, or the reason why none answers; None where nothing points to one."""
    from herringbone.engine import locate

    try:
        engine = locate.find_engine(os.environ, home_folder(), tls=True)
        version, info = engine.get("/version")["Version"], engine.get("/info")
        return Engine(str(version), tuple(sorted(info.get("Runtimes") or {})))
    except (EngineError, UnsupportedError) as error:
        named = os.environ.get("DOCKER_HOST") or shutil.which("docker") or Path(locate.SYSTEM_SOCKET).exists()
        return str(error) if named else None


def find_gpus() -> Gpus:
    """Return the GPUs that the driver shows."""
    answer = nvidia_smi.ask(*_QUERY, seconds=_PROGRAM_SECONDS)
    return Gpus(count_gpus(), None if answer is None else tuple(answer.splitlines()))


def count_gpus() -> int:
    """Return the number of NVIDIA's device files."""
    return sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia*"))


def try_ports() -> Ports:
    """Listen on a port of loopback that the kernel chooses, and connect to it."""
    error = ""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            socket.create_connection(listener.getsockname(), timeout=_PROGRAM_SECONDS).close()
    except OSError as failure:
        error = failure.strerror or str(failure)
    try:
        first, last = map(int, _PORT_RANGE.read_text().split())
    except (OSError, ValueError):
        first, last = 1_024, 65_535
    return Ports(error, first, last)


def find_home_disk() -> Disk:
    """Return the disk of the jobs' folder, which may not exist yet."""
    home = find_home().path
    return disk_of(home, next(folder for folder in (home, *home.parents) if folder.exists()))


def find_shared_memory() -> Disk | None:
    """Return the room in /dev/shm."""
    folder = Path("/dev/shm")  # noqa: S108 - the kernel's name
    return disk_of(folder, folder) if folder.is_dir() else None


def disk_of(path: Path, existing: Path) -> Disk:
    """Return the room for `path`, on the file system of `existing`."""
    disk = shutil.disk_usage(existing)
    return Disk(str(path), os.access(existing, os.W_OK | os.X_OK), disk.free, disk.total)


def find_limits() -> OpenFiles:
    """Return the limits on open files."""
    return OpenFiles(*resource.getrlimit(resource.RLIMIT_NOFILE))


def find_core() -> str | None:
    """Return the path of the compiled core of sums."""
    spec = importlib.util.find_spec("herringbone_parallel")
    folders = spec.submodule_search_locations if spec is not None else None
    paths = [Path(folder, "reduce", "_native.so") for folder in folders or ()]
    return next((str(path) for path in paths if path.exists()), None)


def find_aws(*, ask: bool) -> Aws | None:
    """Return AWS's settings, from variables and files; with `ask`, AWS says who the caller is."""
    version = installed_version("boto3")
    if version is None:
        return None
    source = find_credentials(os.environ)
    facts = Aws(version, find_region(os.environ), source, stands_in=stands_in(os.environ, source))
    facts = facts._replace(problem=problem_of_files(os.environ))
    if not ask or facts.problem:
        return facts
    from herringbone.aws.session import AwsSession

    try:
        return facts._replace(caller=AwsSession(attempts=1).caller.arn)
    except HerringboneError as error:
        return facts._replace(problem=str(error).partition("\n")[0])


def find_slurm() -> Program | None:
    """Return the command that submits jobs to Slurm."""
    path = shutil.which("sbatch")
    return None if path is None else Program(path, _answer(path, "--version") or "")


def find_ssh() -> Ssh | None:
    """Return OpenSSH's client."""
    path = shutil.which("ssh")
    if path is None:
        return None
    return Ssh((_answer(path, "-V") or "ssh").partition(",")[0].strip(), shutil.which("rsync") is not None)


def find_pages() -> str | None:
    """Return the folder with the pages of this release: of the checkout that runs, or of the installation."""
    # An editable install has a copy too, which is as old as the install.
    folders = [Path(__file__).resolve().parents[3] / "docs"]
    installed = importlib.metadata.files("herringbone") or ()
    names = (file for file in installed if file.as_posix().endswith("share/doc/herringbone/index.md"))
    folders += [Path(str(file.locate())).resolve().parent for file in names]
    return next((str(folder) for folder in folders if (folder / "index.md").is_file()), None)


def _answer(program: str, *arguments: str) -> str | None:
    """Return what a program prints; None if it cannot be run, fails or hangs."""
    # Open MPI as root prints its version only with this permission.
    permission = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    try:
        done = subprocess.run(
            [program, *arguments],
            env={**os.environ, **permission},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROGRAM_SECONDS,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
