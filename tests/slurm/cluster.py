"""A Slurm cluster of four nodes on this machine: munged, slurmctld and a slurmd for each node, all in one folder.

Each node has its own network namespace and address. Its GPUs are plain devices that slurmd accepts as GPUs. Needs root
and Debian's packages slurmctld, slurmd, slurm-client, munge and iproute2.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

PROGRAMS = (
    "ip",
    "nsenter",
    "setpriv",
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "srun",
    "scontrol",
    "squeue",
    "scancel",
    "sinfo",
)
NODES = ("n1", "n2", "n3", "n4")
_START_SECONDS = 20.0
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}({network}.254)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
# A requeued job waits for cred_expire seconds.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=500
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=300
KillWait=5
SchedulerParameters=sched_interval=1,batch_sched_delay=1,bf_interval=1
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=gpu Nodes=n[1-4] Default=YES State=UP PriorityTier=2 PreemptMode=OFF
PartitionName=idle Nodes=n[1-4] State=UP PriorityTier=1 GraceTime=20
PartitionName=paid Nodes=n[1-2] AllowAccounts=team MaxTime=60 State=UP
"""


def missing() -> str | None:
    """Return why this machine cannot run a cluster; None when it can."""
    if os.geteuid() != 0:
        return "a Slurm cluster of one machine needs root"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"Slurm is not installed: {', '.join(absent)}; apt-get install slurmctld slurmd munge" if absent else None


class Cluster:
    """A cluster that runs inside a `with` block; `folder` has a short path, because sockets are in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        self._network = Network(os.getpid())
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:
        try:
            self._write()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self._network.remove()

    def ask(self, *words: str) -> str:
        process = subprocess.run(words, capture_output=True, text=True, env=self.environ, timeout=60)
        assert process.returncode == 0, process.stderr
        return process.stdout

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.configuration)}

    def take_down(self, node: str) -> None:
        """End a node as a power cut does: its network, its slurmd and all processes of its jobs."""
        self._network.cut(node)
        daemon = self._processes.pop(node)
        daemon.kill()
        daemon.wait()
        for pid in self.processes(node):
            # A rank may have ended already, together with its supervisor.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def notice(self, node: str) -> None:
        """Tell Slurm that a node is down, which it would notice by itself after SlurmdTimeout."""
        self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")

    def bring_up(self, node: str) -> None:
        before = self._registered(node)
        self._network.restore(node)
        self._run(node, *self._network.inside(node), "slurmd", "-D", "-N", node)
        # A resumed node is shown as idle at once, before its slurmd answers.
        self.wait(lambda: self._registered(node) != before)
        words = ("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T")
        if "down" in self.ask(*words):
            self.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self.wait(lambda: set(self.ask(*words).split()) == {"idle"})

    def _registered(self, node: str) -> str:
        """Return the start of the slurmd that has last registered for a node, as Slurm knows it."""
        words = self.ask("scontrol", "--oneliner", "show", "node", node).split()
        return next(word for word in words if word.startswith("SlurmdStartTime="))

    def processes(self, node: str | None = None) -> dict[int, str]:
        """Return the processes of jobs on one node, or on all nodes, with their command lines."""
        commands = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environ = dict(
                    word.partition("=")[::2] for word in (entry / "environ").read_bytes().decode().split("\0")
                )
                command = (entry / "cmdline").read_bytes().decode().replace("\0", " ")
            except (OSError, UnicodeDecodeError):
                continue  # the process ended between the listing and the read
            ours = environ.get("SLURM_CONF") == str(self.configuration) and "SLURMD_NODENAME" in environ
            if ours and node in (None, environ["SLURMD_NODENAME"]):
                commands[int(entry.name)] = command
        if node is None:
            return commands
        return commands | {pid: "slurmstepd" for pid in map(_parent, commands) if _is_stepd(pid)}

    @staticmethod
    def wait(until: Callable[[], Any], seconds: float = _START_SECONDS) -> None:
        wait_until(until, seconds)

    def _write(self) -> None:
        self.folder.chmod(0o711)
        (self.folder / "state").mkdir()
        for node in NODES:
            (self.folder / f"spool-{node}").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        host, port = socket.gethostname(), _free_port()
        line = "NodeName={node} NodeHostname={host} NodeAddr={address} Port={port} CPUs=8 RealMemory=8000 Gres=gpu:2"
        text = _CONFIGURATION.format(
            host=host,
            folder=self.folder,
            network=self._network.prefix,
            port=port,
            nodes="\n".join(
                line.format(node=node, host=host, address=self._network.address(node), port=port + position)
                for position, node in enumerate(NODES, 1)
            ),
        )
        self.configuration.write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        for number in (0, 1):
            # The device numbers of /dev/null: slurmd needs some device, and no job opens it.
            os.mknod(self.folder / f"gpu{number}", 0o666 | 0o020000, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text(f"NodeName=n[1-4] Name=gpu File={self.folder}/gpu[0-1]\n")

    def _start(self) -> None:
        folder = self.folder
        self._network.make()
        files = {name: folder / f"munge.{name}" for name in ("socket", "key", "log", "seed", "pid")}
        words = [f"--{'-'.join((name, 'file')) if name != 'socket' else name}={path}" for name, path in files.items()]
        self._run("munge", "munged", "--foreground", "--force", *words)
        self.wait(lambda: files["socket"].exists())
        self._run("controller", "slurmctld", "-D", "-c")
        for node in NODES:
            self._run(node, *self._network.inside(node), "slurmd", "-D", "-N", node)
        self.wait(lambda: self._idle() == len(NODES))

    def _idle(self) -> int:
        words = ("sinfo", "--noheader", "--Node", "--partition=gpu", "--format=%T")
        process = subprocess.run(words, capture_output=True, text=True, env=self.environ)
        return process.stdout.split().count("idle")

    def _run(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            # The kernel kills the daemons when the test run is killed.
            command = ("setpriv", "--pdeathsig", "KILL", *words)
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environ, start_new_session=True
            )


class Network:
    """A bridge that connects this machine and the nodes; `number` makes the names unique to this process.

    The bridge has a namespace of its own, so the firewall rules of this machine (Docker's, for example) do not apply.
    """

    def __init__(self, number: int, nodes: Sequence[str] = NODES, *, kind: str = "hbc", block: str = "198.18") -> None:
        self._kind = kind
        self._name = f"{kind}{number}"
        self._nodes = nodes
        # From the address block for tests of network devices (RFC 2544).
        self.prefix = f"{block}.{number % 250}"

    def address(self, node: str) -> str:
        return f"{self.prefix}.{self._nodes.index(node) + 1}"

    def inside(self, node: str) -> list[str]:
        # `ip netns exec` would also mount another /sys.
        return ["nsenter", f"--net=/run/netns/{self._space(node)}"]

    def make(self) -> None:
        """Remove the namespaces of killed test runs, then create this network."""
        for old in Path("/run/netns").glob(f"{self._kind}*"):
            if not Path("/proc", old.name.removeprefix(self._kind).partition("-")[0]).exists():
                subprocess.run(("ip", "netns", "del", old.name), capture_output=True)
        _ip("netns", "add", self._name)
        _ip("-netns", self._name, "link", "add", "switch", "type", "bridge")
        _ip("-netns", self._name, "link", "set", "switch", "up")
        _ip("link", "add", self._name, "type", "veth", "peer", "name", "here", "netns", self._name)
        self._plug_in("here")
        _ip("address", "add", f"{self.prefix}.254/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        for node in self._nodes:
            space = self._space(node)
            _ip("netns", "add", space)
            _ip("-netns", self._name, "link", "add", node, "type", "veth", "peer", "name", "eth0", "netns", space)
            self._plug_in(node)
            _ip("-netns", space, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-netns", space, "link", "set", device, "up")

    def cut(self, node: str) -> None:
        _ip("-netns", self._name, "link", "set", node, "down")

    def restore(self, node: str) -> None:
        _ip("-netns", self._name, "link", "set", node, "up")

    def remove(self) -> None:
        """Remove the namespaces; their links disappear with them."""
        for space in (*map(self._space, self._nodes), self._name):
            subprocess.run(("ip", "netns", "del", space), capture_output=True)

    def _plug_in(self, link: str) -> None:
        _ip("-netns", self._name, "link", "set", link, "master", "switch", "up")

    def _space(self, node: str) -> str:
        return f"{self._name}-{node}"


def _ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, capture_output=True)


def _free_port() -> int:
    """Return a free port for slurmctld, below the ports of outgoing connections."""
    for first in range(17_000, 30_000, 10):
        with socket.socket() as probe:
            try:
                probe.bind(("", first))
            except OSError:
                continue
            return first
    raise AssertionError("no free port")


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except FileNotFoundError:
        return 0


def _is_stepd(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"slurmstepd")
    except FileNotFoundError:
        return False
