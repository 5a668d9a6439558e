"""Deaths for jobs on the tests' cluster, and the script that they hit: its weights tell whether a step was lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from herringbone.backends.kubernetes.names import ObjectNames
from herringbone.backends.kubernetes.objects import role
from tests.kubernetes.cluster import Cluster

ACCOUNT, NAMESPACE = "herringbone", "--namespace=team-a"
STEPS = 40
# Each rank notes every step in a file of its own: attempt, step and time. Weights are saved every second step.
SCRIPT = f"""
import json, os, pathlib, re, sys, time
rank, attempt = os.environ["RANK"], re.search(r"-a(\\d+)[.]", pathlib.Path("/etc/hosts").read_text()).group(1)
folder = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"])
saved = folder / "weights.json"
state = json.loads(saved.read_text()) if saved.exists() else {{"step": 0, "weight": 1}}
print("from step", state["step"], flush=True)
with open(folder / f".steps-{{rank}}", "a", buffering=1) as notes:
    (folder / f".pid-{{rank}}-{{attempt}}").write_text(str(os.getpid()))
    while state["step"] < {STEPS}:
        step = state["step"] = state["step"] + 1
        state["weight"] = (state["weight"] * 31 + step) % 1_000_003
        notes.write(f"{{attempt}} {{step}} {{time.time()}}\\n")
        if rank == "0" and step % 2 == 0:
            new = folder / f".new-{{attempt}}"
            new.write_text(json.dumps(state))
            new.replace(saved)
        time.sleep(float(os.environ.get("STEP_SECONDS", "0.25")))
if rank == "0":
    pathlib.Path(os.environ["SM_MODEL_DIR"], "weights.json").write_text(json.dumps(state))
"""


def make_account(cluster: Cluster, namespace: str) -> None:
    """Make the account of the controllers, with the Role of the page alone."""
    metadata = {"name": ACCOUNT, "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "herringbone"}
    subjects = [{"kind": "ServiceAccount", **metadata}]
    items = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        role(namespace),
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": reference,
            "subjects": subjects,
        },
    ]
    cluster.kubectl("apply", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def expected_weight() -> int:
    weight = 1
    for step in range(1, STEPS + 1):
        weight = (weight * 31 + step) % 1_000_003
    return weight


class Victim(NamedTuple):
    """A host of a job, and the job's folder of checkpoints in the claim, as this machine sees it."""

    cluster: Cluster
    job: str
    host: str
    folder: Path

    def pods(self) -> list[dict[str, Any]]:
        """Return the host's pods, the newest last."""
        labels = {"dev.herringbone/job": ObjectNames(self.job).label, "dev.herringbone/host": self.host}
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        pods = self.cluster.get("pods", NAMESPACE, f"--selector={selector}")
        return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    @property
    def pod(self) -> dict[str, Any]:
        return [pod for pod in self.pods() if pod["status"]["phase"] == "Running"][-1]

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    def run(self, command: str) -> None:
        words = ("exec", self.name, NAMESPACE, "--container=host", "--", "/bin/sh", "-c", command)
        # Its shell may end with the pod.
        assert self.cluster.try_kubectl(*words).returncode in (0, 137)


def options(name: str = "Digits-1", **more: Any) -> dict[str, Any]:
    """Return the options of a job whose checkpoints are in the claim, and that is retried without a client."""
    account = {"kubernetes": {"service_account": ACCOUNT}, "checkpoint_s3_uri": f"pvc://results/checkpoints/{name}"}
    return {"max_retry_attempts": 3, **account, **more}


def steps_of(folder: Path, rank: int) -> list[tuple[int, int, float]]:
    """Return attempt, step and time of each step that a rank has taken."""
    file = folder / f".steps-{rank}"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(int(attempt), int(step), float(time)) for attempt, step, time in lines]


def check_no_step_doubled(folder: Path, ranks: int = 2) -> None:
    """Check that no attempt has taken a step after a later one had begun."""
    for rank in range(ranks):
        attempts = [attempt for attempt, _, _ in sorted(steps_of(folder, rank), key=lambda step: step[2])]
        assert attempts == sorted(attempts), (rank, attempts)


def kill_rank(victim: Victim) -> None:
    rank = int(victim.host.removeprefix("algo-")) - 1
    pid = max(victim.folder.glob(f".pid-{rank}-*"), key=lambda file: file.stat().st_mtime).read_text()
    victim.run(f"kill -KILL {pid}")


def kill_supervisor(victim: Victim) -> None:
    victim.run("for p in /proc/[0-9]*; do ! grep -q '[b]in/train' $p/cmdline || kill -KILL ${p#/proc/}; done")


def kill_container(victim: Victim) -> None:
    pod = victim.pod
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    victim.cluster.ctr(pod["spec"]["nodeName"], "tasks", "kill", "--signal=SIGKILL", container)


def delete_pod(victim: Victim) -> None:
    victim.cluster.kubectl("delete", "pod", victim.name, NAMESPACE, "--wait=false")


def force_delete_pod(victim: Victim) -> None:
    victim.cluster.kubectl("delete", "pod", victim.name, NAMESPACE, "--force", "--grace-period=0", "--wait=false")


def delete_controller(victim: Victim) -> None:
    selector = f"dev.herringbone/part=controller,dev.herringbone/job={ObjectNames(victim.job).label}"
    victim.cluster.kubectl("delete", "pod", f"--selector={selector}", NAMESPACE, "--wait=false")


def drain(victim: Victim) -> None:
    node = victim.pod["spec"]["nodeName"]
    victim.cluster.kubectl("drain", node, "--delete-emptydir-data", "--timeout=90s")


def stop_kubelet(victim: Victim) -> None:
    victim.cluster.halt(f"kubelet-{victim.pod['spec']['nodeName']}")


def stop_server(victim: Victim) -> None:
    """Kill a host while the API server is away for 30 s."""
    kill_supervisor(victim)
    _halt_for(victim.cluster, "apiserver", 30.0)


def restart_etcd(victim: Victim) -> None:
    kill_supervisor(victim)
    _halt_for(victim.cluster, "etcd", 2.0)


def _halt_for(cluster: Cluster, program: str, seconds: float) -> None:
    cluster.halt(program)
    time.sleep(seconds)
    cluster.run(program)


Death = Callable[[Victim], None]
# Those that leave the cluster as it was.
OF_PODS: dict[str, Death] = {
    "rank": kill_rank,
    "supervisor": kill_supervisor,
    "container": kill_container,
    "pod deleted": delete_pod,
    "pod deleted by force": force_delete_pod,
    "controller pod deleted": delete_controller,
}
DEATHS: dict[str, Death] = {
    **OF_PODS,
    "node drained": drain,
    "API server away for 30 s": stop_server,
    "etcd restarted": restart_etcd,
    "kubelet stopped": stop_kubelet,
}
