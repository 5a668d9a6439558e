"""The facts that probes collect about this machine. None in place of one of them means: there is no such thing here."""

from __future__ import annotations

from typing import NamedTuple


class Python(NamedTuple):
    """The Python of the SDK, in which the hosts of `local_process` run, too."""

    version: tuple[int, int, int]
    executable: str
    platform: str


class Framework(NamedTuple):
    """An installed framework; `cuda` is the version that a torch was built for, `gpus` those of this machine."""

    version: str
    cuda: str | None = None
    gpus: int = 0


class Program(NamedTuple):
    """A program, and the text with which it answers the question for its version."""

    path: str
    answer: str


class Engine(NamedTuple):
    """A container engine that answers."""

    version: str
    runtimes: tuple[str, ...]


class Gpus(NamedTuple):
    """The device files of NVIDIA GPUs, and the lines of nvidia-smi: name, driver, memory."""

    devices: int
    lines: tuple[str, ...] | None


class Ports(NamedTuple):
    """The error of a listener on loopback, or "", and the range of ports from which the kernel chooses."""

    error: str
    first: int
    last: int


class Disk(NamedTuple):
    """A file system's room in bytes, and whether this user may write there."""

    path: str
    writable: bool
    free_bytes: int
    total_bytes: int


class OpenFiles(NamedTuple):
    """The limits on open files of one process."""

    soft: int
    hard: int


class Aws(NamedTuple):
    """AWS's settings, without any secret. `caller` and `problem` are answers of AWS, if it was asked.

    `stands_in`: folders stand in for the buckets of projects for SageMaker whose jobs go to own hosts.
    """

    boto3: str
    region: str | None = None
    credentials: str | None = None
    caller: str = ""
    problem: str = ""
    stands_in: bool = False


class Ssh(NamedTuple):
    """The version of OpenSSH's client, and whether there is an rsync."""

    version: str
    has_rsync: bool
