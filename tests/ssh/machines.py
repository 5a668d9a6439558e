"""Machines to log in to: namespaces of this machine (network, host name, processes), with an sshd in each. Root only.

    this process --- veth ---\\
    h-1: sshd    --- veth --- bridge, in a namespace of its own      (in the main one, Docker would filter its frames)
    h-2: sshd    --- veth ---/

Links are shaped by tc tbf and cut by `ip link set down`. Each machine has a work folder and a folder of slots of its
own; the disk is shared.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

SSHD = "/usr/sbin/sshd"
# Without one of these programs the tests are skipped.
PROGRAMS = (SSHD, "ssh", "ssh-keygen", "rsync", "ip", "tc", "unshare")
_SSHD_CONFIG = """\
Port 22
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
MaxStartups 100
SetEnv SHLVL=2 DOCKER_HOST=unix://{folder}/docker/socket HERRINGBONE_SLOTS={folder}/slots PATH={path} {variables}
"""
# DOCKER_HOST: the engine of this machine is not an engine of the namespaces. SHLVL=2: otherwise bash reads ~/.bashrc
# for each command, with everything that a person has set up there (pyenv, conda).
_SSH_CONFIG = """\
Host *
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  User root
"""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UP_SECONDS = 10.0


def missing() -> str | None:
    """Return a sentence about what is missing for machines; None when nothing is."""
    if os.geteuid() != 0:
        return "machines in namespaces need root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)} (apt-get install openssh-server rsync iproute2)" if absent else None


class Machines:
    """`count` machines h-1, h-2, ... at 10.X.Y.1, 10.X.Y.2, ...; `folder` has a short path.

    `variables` are set in the environment of each login.

    with Machines(3, tmp_path) as machines:
        subprocess.run(["ssh", "-F", machines.config, "h-1", "hostname"])
    """

    def __init__(
        self, count: int, folder: Path, *, mbit: float = 1_000, variables: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.names = [f"h-{number}" for number in range(1, count + 1)]
        self.folder = folder
        self.config = folder / "ssh_config"
        self._mbit = mbit
        self._variables = " ".join(f"{name}={value}" for name, value in variables.items())
        self._mark = f"hbs{os.getpid()}"
        # A subnet per process: two runs of these tests on one machine must not share addresses.
        self._subnet = f"10.{80 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Machines:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for name, daemon in self._daemons.items():
            self._signal_all(name, signal.SIGKILL)
            daemon.kill()
            daemon.wait()
        self._daemons.clear()
        _run("ip", "link", "del", self._mark, check=False)
        for name in [*self.names, "br"]:
            _run("ip", "netns", "del", self._namespace(name), check=False)
            shutil.rmtree(f"/etc/netns/{self._namespace(name)}", ignore_errors=True)

    def address(self, name: str) -> str:
        return f"{self._subnet}.{self.names.index(name) + 1}"

    @property
    def subnet(self) -> str:
        return f"{self._subnet}.0/24"

    @property
    def gateway(self) -> str:
        """The address of this machine on their network."""
        return f"{self._subnet}.254"

    def work(self, name: str) -> Path:
        """Return a machine's work folder."""
        return self.folder / name / "work"

    def inventory(self, **extra: object) -> dict[str, object]:
        """Return the inventory of all machines, as the content of a YAML file."""
        hosts = [{"name": name, "work_folder": str(self.work(name))} for name in self.names]
        return {"python": sys.executable, "hosts": hosts, **extra}

    def inside(self, name: str) -> list[str]:
        """Return the words before a command that run it on that machine's network."""
        return ["ip", "netns", "exec", self._namespace(name)]

    def pids(self, name: str, text: str = "") -> list[int]:
        """Return a machine's processes, except its sshd, that have a text in their command line."""
        pids = []
        for pid in map(int, _run("ip", "netns", "pids", self._namespace(name)).split()):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if text in command and SSHD not in command.split()[:1] and pid != self._daemons[name].pid:
                    pids.append(pid)
        return pids

    def first_process(self, name: str) -> int:
        """Return the first process of a machine: the sshd that listens."""
        (pid,) = Path(f"/proc/{self._daemons[name].pid}/task/{self._daemons[name].pid}/children").read_text().split()
        return int(pid)

    @contextlib.contextmanager
    def engines(self, names: Sequence[str]) -> Iterator[dict[str, str]]:
        """Start a container engine on each of these machines, on its network; yield the engines' addresses."""
        running = {}
        try:
            for name in names:
                folder = self.folder / name / "docker"
                folder.mkdir()
                command = [*("dockerd", "--host", f"unix://{folder}/socket", "--data-root", str(folder / "data"))]
                command += ["--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid"), "--bridge", "none"]
                command += ["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
                with (folder / "log").open("wb") as log:
                    # `ip netns exec` would mount another /sys, without the control groups that dockerd needs.
                    inside = ["nsenter", f"--net=/run/netns/{self._namespace(name)}"]
                    running[name] = subprocess.Popen(
                        [*inside, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
                    )
            for name in names:
                self._await_engine(name)
            yield {name: f"unix://{self.folder / name}/docker/socket" for name in names}
        finally:
            for engine in running.values():
                engine.terminate()
            for name, engine in running.items():
                engine.wait(6 * _UP_SECONDS)
                folder = self.folder / name / "docker"
                mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
                for point in reversed([path for path in mounted if path.startswith(f"{folder}/")]):
                    _run("umount", "--lazy", point, check=False)
                shutil.rmtree(folder)

    def _await_engine(self, name: str) -> None:
        folder, deadline = self.folder / name / "docker", time.monotonic() + 2 * _UP_SECONDS
        command = ["docker", "--host", f"unix://{folder}/socket", "version"]
        while subprocess.run(command, capture_output=True).returncode:
            assert time.monotonic() < deadline, (folder / "log").read_text()[-2_000:]
            time.sleep(0.1)

    @contextlib.contextmanager
    def gpus(self, count: int) -> Iterator[None]:
        """Give each machine an nvidia-smi that lists so many GPUs, GPU-0 and so on; the file `used` has their users."""
        lines = "".join(f'echo "GPU {number}: NVIDIA Fake (UUID: GPU-{number})"\n' for number in range(count))
        programs = [self.folder / name / "bin" / "nvidia-smi" for name in self.names]
        try:
            for program in programs:
                program.parent.mkdir(exist_ok=True)
                used = f"cat {program.parent}/used 2>/dev/null; exit 0"
                program.write_text(f'#!/bin/sh\n[ "$1" = -L ] || {{ {used}; }}\n{lines}')
                program.chmod(0o755)
            yield
        finally:
            for program in programs:
                program.unlink(missing_ok=True)
                (program.parent / "used").unlink(missing_ok=True)

    def cut(self, name: str) -> None:
        """Cut a machine's link."""
        _run("ip", "-n", self._namespace("br"), "link", "set", name, "down")

    def reconnect(self, name: str) -> None:
        """Undo `cut`."""
        _run("ip", "-n", self._namespace("br"), "link", "set", name, "up")

    def sever(self, directions: Iterable[tuple[str, str]]) -> None:
        """Lose what machines send each other in these directions (from, to), and in no other."""
        for name in self.names:
            inside = [*self.inside(name), "iptables", "-w"]
            _run(*inside, "-F", "INPUT")
            for sender, receiver in directions:
                if receiver == name:
                    _run(*inside, "-A", "INPUT", "-s", self.address(sender), "-j", "DROP")

    def freeze(self, name: str) -> None:
        """Stop every process of a machine, including its sshd."""
        self._signal_all(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Undo `freeze`."""
        self._signal_all(name, signal.SIGCONT)

    def kill_sessions(self, name: str) -> None:
        """Kill every sshd that serves a connection, but not the one that listens."""
        for pid in map(int, _run("ip", "netns", "pids", self._namespace(name)).split()):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith((b"sshd: root", b"sshd-session: root")):
                    os.kill(pid, signal.SIGKILL)

    def new_host_key(self, name: str) -> None:
        """Make clients expect another key than the machine's own, as after an exchange of the machine, or an attack."""
        other = next(candidate for candidate in self.names if candidate != name)
        self.know_host_keys({name: other})

    def know_host_keys(self, instead: Mapping[str, str] = MappingProxyType({})) -> None:
        """Write the keys that clients expect: each machine's own, or that of the machine in `instead`."""
        keys = {name: (self.folder / instead.get(name, name) / "host_key.pub").read_text() for name in self.names}
        (self.folder / "known_hosts").write_text("".join(f"{name} {key}" for name, key in keys.items()))

    def _make(self) -> None:
        _remove_dead_runs()
        Path("/run/sshd").mkdir(exist_ok=True)
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "key"))
        bridge = self._namespace("br")
        _run("ip", "netns", "add", bridge)
        _run("ip", "-n", bridge, "link", "add", "br0", "type", "bridge", "stp_state", "0")
        _run("ip", "-n", bridge, "link", "set", "br0", "up")
        _run("ip", "link", "add", self._mark, "type", "veth", "peer", "name", "client", "netns", bridge)
        self._plug("client")
        _run("ip", "addr", "add", f"{self.gateway}/24", "dev", self._mark)
        _run("ip", "link", "set", self._mark, "up")
        config = _SSH_CONFIG.format(folder=self.folder)
        for name in self.names:
            self._start(name)
            config += f"Host {name}\n  HostName {self.address(name)}\n  HostKeyAlias {name}\n"
        self.config.write_text(config)
        self.know_host_keys()
        for name in self.names:
            self._await(name)

    def _start(self, name: str) -> None:
        folder = self.folder / name
        folder.mkdir()
        namespace = self._namespace(name)
        # `ip netns exec` shows these files in the place of those in /etc. Without a reachable name server every look-up
        # of a name would wait for its time limit.
        etc = Path("/etc/netns", namespace)
        etc.mkdir(parents=True)
        (etc / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        names = "".join(f"{self.address(other)} {other}\n" for other in self.names)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        _run("ip", "netns", "add", namespace)
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        _run(
            "ip",
            "-n",
            namespace,
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            name,
            "netns",
            self._namespace("br"),
        )
        _run("ip", "-n", namespace, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        rate = ["rate", f"{self._mbit}mbit", "burst", "64kb", "limit", "1mb"]
        _run("tc", "-n", namespace, "qdisc", "add", "dev", "eth0", "root", "tbf", *rate)
        _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        self._plug(name)
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key"))
        shutil.copy(self.folder / "key.pub", folder / "authorized_keys")
        (folder / "sshd_config").write_text(
            _SSHD_CONFIG.format(
                address=self.address(name), folder=folder, path=f"{folder}/bin:{_PATH}", variables=self._variables
            )
        )
        inner = f'hostname {name}; exec {SSHD} -D -e -f "$1" 2>"$2"'
        self._daemons[name] = subprocess.Popen(
            [
                *self.inside(name),
                *("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *("sh", "-c", inner, "sh", str(folder / "sshd_config"), str(folder / "sshd.log")),
            ],
            stdin=subprocess.DEVNULL,
        )

    def _plug(self, device: str) -> None:
        bridge = self._namespace("br")
        _run("ip", "-n", bridge, "link", "set", device, "master", "br0")
        _run("ip", "-n", bridge, "link", "set", device, "up")

    def _await(self, name: str) -> None:
        deadline = time.monotonic() + _UP_SECONDS
        while subprocess.run(
            ["ssh", "-F", self.config, "-o", "BatchMode=yes", "-o", "ConnectTimeout=2", name, "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
        ).returncode:
            if time.monotonic() > deadline:
                raise AssertionError((self.folder / name / "sshd.log").read_text())
            time.sleep(0.1)

    def _signal_all(self, name: str, number: signal.Signals) -> None:
        for pid in map(int, _run("ip", "netns", "pids", self._namespace(name), check=False).split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _namespace(self, name: str) -> str:
        return f"{self._mark}-{name}"


def _remove_dead_runs() -> None:
    """Remove the namespaces of runs that were killed, with their processes; their links go with them."""
    for namespace in Path("/run/netns").glob("hbs*"):
        if not Path("/proc", namespace.name.removeprefix("hbs").partition("-")[0]).exists():
            for pid in map(int, _run("ip", "netns", "pids", namespace.name, check=False).split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _run("ip", "netns", "del", namespace.name, check=False)
            shutil.rmtree(f"/etc/netns/{namespace.name}", ignore_errors=True)


def _run(*command: str, check: bool = True) -> str:
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout


@contextlib.contextmanager
def stopped_masters(folder: Path) -> Iterator[None]:
    """At the end, close the shared connections of ssh in a control folder."""
    try:
        yield
    finally:
        for socket in folder.iterdir():
            subprocess.run(["ssh", "-O", "exit", "-o", f"ControlPath={socket}", "any"], capture_output=True)
