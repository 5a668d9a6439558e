"""Deaths for jobs on the tests' cluster, and the script that they hit: its weights tell whether a step was lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from herringbone.backends.kubernetes.objects import role
from tests.kubernetes.cluster import Cluster

ACCOUNT = "herringbone"
STEPS = 40
# Each rank notes every step in a file of its own: attempt, step and time. Weights are saved every second step.
SCRIPT = f"""
import json, os, pathlib, re, sys, time
rank, attempt = os.environ["RANK"], re.search(r"-a(\\d+)", os.environ.get("HERRINGBONE_CONTROL", "-a1")).group(1)
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


def options(**more: Any) -> dict[str, Any]:
    """Return the options of a job whose checkpoints are in the claim, and that is retried without a client."""
    account = {"service_account": ACCOUNT}
    return {
        "max_retry_attempts": 3,
        "checkpoint_s3_uri": "pvc://results/checkpoints/Digits-1",
        **more,
        "kubernetes": {**account, **more.get("kubernetes", {})},
    }


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


def pod_of(cluster: Cluster, host: str, namespace: str = "team-a") -> dict[str, Any]:
    """Return the newest pod of a host that runs."""
    pods = cluster.get("pods", f"--namespace={namespace}", f"--selector=dev.herringbone/host={host}")
    running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    return max(running, key=lambda pod: pod["metadata"]["creationTimestamp"])


def kill_in(cluster: Cluster, host: str, command: str) -> None:
    name = pod_of(cluster, host)["metadata"]["name"]
    words = ("exec", name, "--namespace=team-a", "--container=host", "--", "/bin/sh", "-c", command)
    # Its shell may end with the pod.
    assert cluster.try_kubectl(*words).returncode in (0, 137)


def kill_rank(cluster: Cluster, host: str, folder: Path) -> None:
    rank = int(host.removeprefix("algo-")) - 1
    pid = max(folder.glob(f".pid-{rank}-*"), key=lambda file: file.stat().st_mtime).read_text()
    kill_in(cluster, host, f"kill -KILL {pid}")


def kill_supervisor(cluster: Cluster, host: str, folder: Path) -> None:
    find = "for p in /proc/[0-9]*; do ! grep -q '[b]in/train' $p/cmdline || kill -KILL ${p#/proc/}; done"
    kill_in(cluster, host, find)


def kill_container(cluster: Cluster, host: str, folder: Path) -> None:
    pod = pod_of(cluster, host)
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    cluster.ctr(pod["spec"]["nodeName"], "tasks", "kill", "--signal=SIGKILL", container)


def delete_pod(cluster: Cluster, host: str, folder: Path) -> None:
    name = pod_of(cluster, host)["metadata"]["name"]
    cluster.kubectl("delete", "pod", name, "--namespace=team-a", "--wait=false")


def force_delete_pod(cluster: Cluster, host: str, folder: Path) -> None:
    name = pod_of(cluster, host)["metadata"]["name"]
    cluster.kubectl("delete", "pod", name, "--namespace=team-a", "--force", "--grace-period=0", "--wait=false")


def delete_controller(cluster: Cluster, host: str, folder: Path) -> None:
    selector = "--selector=dev.herringbone/part=controller"
    cluster.kubectl("delete", "pod", selector, "--namespace=team-a", "--wait=false")


def evict(cluster: Cluster, host: str, folder: Path) -> None:
    cluster.kubectl("drain", pod_of(cluster, host)["spec"]["nodeName"], "--delete-emptydir-data", "--timeout=60s")


def stop_kubelet(cluster: Cluster, host: str, folder: Path) -> None:
    cluster.halt(f"kubelet-{pod_of(cluster, host)['spec']['nodeName']}")


def halt_for(cluster: Cluster, program: str, seconds: float) -> None:
    cluster.halt(program)
    time.sleep(seconds)
    cluster.run(program)


def stop_server(cluster: Cluster, host: str, folder: Path) -> None:
    """Kill a host while the API server is away for 30 s."""
    kill_supervisor(cluster, host, folder)
    halt_for(cluster, "apiserver", 30.0)


def restart_etcd(cluster: Cluster, host: str, folder: Path) -> None:
    kill_supervisor(cluster, host, folder)
    halt_for(cluster, "etcd", 2.0)


Death = Callable[[Cluster, str, Path], None]
DEATHS: dict[str, Death] = {
    "rank": kill_rank,
    "supervisor": kill_supervisor,
    "container": kill_container,
    "pod deleted": delete_pod,
    "pod deleted by force": force_delete_pod,
    "controller pod deleted": delete_controller,
    "node drained": evict,
    "API server away for 30 s": stop_server,
    "etcd restarted": restart_etcd,
    "kubelet stopped": stop_kubelet,
}
