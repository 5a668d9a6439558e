"""A Kubernetes cluster of two nodes on this machine: etcd, the three servers, and a containerd and a kubelet a node.

`control`, `n1` and `n2` have network namespaces of their own. The nodes also have mount namespaces, and cgroups, in
which all processes of their pods are: nothing of a node is left when these are gone. Needs root, and what
`tests/kubernetes/setup` installs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.kubernetes import images, name_server, node_files
from tests.slurm.cluster import Network
from tests.waiting import wait_until

NODES = ("n1", "n2")
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
PROGRAMS = ("ip", "nsenter", "unshare", "setpriv", "etcd", "containerd", "runc", "conntrack", "ctr", "openssl")
_KIND = "hbk"
_CGROUPS = Path("/sys/fs/cgroup")
_START_SECONDS = 100.0
_TOKENS = {
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    **{node: (f"system:node:{node}", "system:nodes") for node in NODES},
}


def programs_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return next(cache.glob("herringbone-tests/kubernetes-*[0-9]"), cache / "herringbone-tests/kubernetes")


def missing() -> str | None:
    """Return why this machine cannot run a cluster; None when it can."""
    if os.geteuid() != 0:
        return "a Kubernetes cluster of one machine needs root"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    absent += [name for name in SERVERS if not (programs_folder() / name).exists()]
    return f"Kubernetes is not installed: {', '.join(absent)}; tests/kubernetes/setup builds it" if absent else None


class Cluster:
    """A cluster that runs inside a `with` block; `folder` has a short path, because sockets are in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"{_KIND}{os.getpid()}"
        self.seconds: dict[str, float] = {}
        self.kubeconfig = folder / "admin.json"
        self._network = Network(os.getpid(), ("control", *NODES), kind=_KIND, block="198.19")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tokens = {name: os.urandom(16).hex() for name in _TOKENS}
        # A kubectl for each look would load the machine.
        self._look_up = name_server.ask_server(self.server, self._tokens["admin"])

    @property
    def server(self) -> str:
        return self._network.address("control")

    def __enter__(self) -> Cluster:
        try:
            _remove_cgroups(dead=True)
            with self._timed("network"):
                self._network.make()
                self._join_networks()
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
        self._processes.clear()
        _remove_cgroups(self.name)
        self._network.remove()

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        process = self.try_kubectl(*words, stdin=stdin)
        assert process.returncode == 0, process.stderr
        return process.stdout

    def try_kubectl(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        kubectl = Path(sys.executable).with_name("kubectl")
        command = (str(kubectl), f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.folder}/kubectl", *words)
        return subprocess.run(command, capture_output=True, text=True, input=stdin, timeout=180)

    def get(self, kind: str, *words: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "--output=json", *words))["items"]
        return items

    def make_volume(self, name: str, namespace: str, folder: Path) -> None:
        """Make a claim whose volume is a folder of this machine, which the nodes share."""
        shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        amount = {"storage": "1Gi"}
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                **shared,
                "capacity": amount,
                "claimRef": {"namespace": namespace, "name": name},
                "hostPath": {"path": str(folder)},
            },
        }
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**shared, "resources": {"requests": amount}},
        }
        items = {"apiVersion": "v1", "kind": "List", "items": [volume, claim]}
        self.kubectl("apply", "--filename=-", stdin=json.dumps(items))

    def ctr(self, node: str, *words: str) -> str:
        """Ask the containerd of a node."""
        command = ("ctr", f"--address={self._node(node)}/containerd.sock", "--namespace=k8s.io", *words)
        process = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert process.returncode == 0, process.stderr
        return process.stdout

    def load(self, archive: Path) -> None:
        """Import an image, as `docker save` writes it, into every node."""
        for node in NODES:
            self.ctr(node, "images", "import", str(archive))

    def halt(self, name: str) -> None:
        """Kill one of the cluster's programs: etcd, apiserver, controllers, scheduler, names, kubelet-n1, ..."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def run(self, *names: str) -> None:
        """Start some of the cluster's programs, again or for the first time, and wait until all of them answer."""
        programs = self._programs()
        with self._timed(" ".join(names)):
            for name in names:
                self._run(name, *programs[name][0])
            for name in names:
                self.wait(partial(self._answers, name, programs[name][1]), name)

    def wait(self, until: Callable[[], Any], why: str, seconds: float = _START_SECONDS) -> None:
        wait_until(until, seconds, f"{why}: not within {seconds:g} s; its output is in {self.folder}")

    def processes(self, node: str) -> list[int]:
        """Return the processes of a node's pods."""
        return _members(_CGROUPS / "pids" / f"{self.name}-{node}" / "kubepods")

    def _programs(self) -> dict[str, tuple[list[str], Callable[[], Any]]]:
        """Return the words that start each program, and a function that reports whether it answers."""
        folder, servers, control = self.folder, programs_folder(), self._network.inside("control")
        names = str(Path(__file__).with_name("name_server.py"))
        programs: dict[str, tuple[list[str], Callable[[], Any]]] = {
            "etcd": ([*control, "etcd", f"--data-dir={folder}/etcd", "--log-level=warn"], lambda: True),
            "apiserver": (
                [*control, f"{servers}/kube-apiserver", *node_files.api_server(folder, self.server)],
                lambda: self._look_up("/api/v1/namespaces/default"),
            ),
            "controllers": (
                [*control, f"{servers}/kube-controller-manager", *node_files.controllers(folder)],
                lambda: self._look_up("/api/v1/namespaces/default/serviceaccounts/default"),
            ),
            "scheduler": ([*control, f"{servers}/kube-scheduler", *node_files.scheduler(folder)], lambda: True),
            "names": ([*control, sys.executable, names, self.server, self._tokens["admin"]], lambda: True),
        }
        for node in NODES:
            programs[f"containerd-{node}"] = (self._containerd(node), partial(self._has_runtime, node))
            programs[f"kubelet-{node}"] = (self._kubelet(node), partial(self._is_ready, node))
        return programs

    def _containerd(self, node: str) -> list[str]:
        """Return the words that start a node's containerd, whose process keeps the node's namespaces."""
        inside = (*_into(self._cgroup(node) / "system"), *self._network.inside(node))
        mounted = ("unshare", "--mount", "--propagation=private", "sh", "-ec", node_files.MOUNTS, str(self._node(node)))
        return [*inside, *mounted, "containerd", "--config", f"{self._node(node)}/containerd.toml"]

    def _kubelet(self, node: str) -> list[str]:
        containerd = self._processes.get(f"containerd-{node}")
        inside = ("nsenter", f"--target={containerd.pid if containerd else 0}", "--net", "--mount")
        arguments = node_files.kubelet(self.folder, node, self._network.address(node))
        return [*_into(self._cgroup(node) / "system"), *inside, f"{programs_folder()}/kubelet", *arguments]

    def _start(self) -> None:
        for node in NODES:
            for hierarchy in _hierarchies():
                (hierarchy / f"{self.name}-{node}").mkdir()
            (self._cgroup(node) / "system").mkdir()
        self.run("etcd", "apiserver", *(f"containerd-{node}" for node in NODES))
        with self._timed("images"):
            self.load(images.write_images(self.folder))
        self.run("controllers", "scheduler", "names", *(f"kubelet-{node}" for node in NODES))

    def _write(self) -> None:
        folder = self.folder
        folder.chmod(0o711)
        with self._timed("keys"):
            node_files.make_keys(folder)
        rows = [
            f'{self._tokens[name]},{user},{user},"{group}"' if group else f"{self._tokens[name]},{user},{user}"
            for name, (user, group) in _TOKENS.items()
        ]
        (folder / "tokens.csv").write_text("\n".join(rows) + "\n")
        for name, token in self._tokens.items():
            (folder / f"{name}.json").write_text(node_files.kubeconfig(self.server, folder, token))
        for number, node in enumerate(NODES, 1):
            node_files.write_node(folder, node, number, f"/{self.name}-{node}", self.server)

    def _join_networks(self) -> None:
        """Route the pods' subnets, and give the control plane the address of the Service `kubernetes`."""
        for place in ("control", *NODES):
            space = self._network.inside(place)
            _ask(*space, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
            for number, node in enumerate(NODES, 1):
                if node != place:
                    subnet = node_files.SUBNET.format(number)
                    _ask(*space, "ip", "route", "add", subnet, "via", self._network.address(node))
            if place == "control":
                _ask(*space, "ip", "address", "add", f"{node_files.SERVICE_ADDRESS}/32", "dev", "lo")
            else:
                _ask(*space, "ip", "route", "add", "default", "via", self.server)

    def _has_runtime(self, node: str) -> bool:
        with contextlib.suppress(AssertionError):
            return bool(self.ctr(node, "version"))
        return False

    def _is_ready(self, node: str) -> bool:
        found = self._look_up(f"/api/v1/nodes/{node}") or {"status": {}}
        conditions = found["status"].get("conditions", ())
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _answers(self, name: str, answers: Callable[[], Any]) -> bool:
        assert self._processes[name].poll() is None, (self.folder / f"{name}.log").read_text()[-3_000:]
        return bool(answers())

    def _node(self, node: str) -> Path:
        return self.folder / node

    def _cgroup(self, node: str) -> Path:
        return _CGROUPS / "pids" / f"{self.name}-{node}"

    @contextlib.contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[step] = round(time.monotonic() - start, 1)

    def _run(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            # The kernel kills the programs when the test run is killed; the next one ends what is left in the cgroups.
            command = ("setpriv", "--pdeathsig", "KILL", *words)
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


def _ask(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def _into(cgroup: Path) -> list[str]:
    """Return the words that start a program in a cgroup."""
    return ["sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', str(cgroup)]


def _hierarchies() -> list[Path]:
    return [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _members(cgroup: Path) -> list[int]:
    found, paths = [], None
    while paths is None:
        # The groups of a pod that ends go meanwhile.
        with contextlib.suppress(FileNotFoundError):
            paths = list(cgroup.rglob("cgroup.procs"))
    for path in paths:
        with contextlib.suppress(OSError):
            found += [int(word) for word in path.read_text().split()]
    return found


def _remove_cgroups(name: str | None = None, *, dead: bool = False) -> None:
    """Kill all that is in the cgroups of one cluster, or of those whose test run is `dead`, and remove them."""
    for top in [path for hierarchy in _hierarchies() for path in hierarchy.glob(f"{_KIND}[0-9]*-*")]:
        owner = top.name.partition("-")[0]
        if owner != name and not (dead and not Path("/proc", owner.removeprefix(_KIND)).exists()):
            continue

        def empty(top: Path = top) -> bool:
            members = _members(top)
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not members

        wait_until(empty, 20.0, f"processes in {top} do not end")
        for path in sorted(top.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
            if path.is_dir():
                path.rmdir()
        top.rmdir()
