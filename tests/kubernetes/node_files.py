"""The arguments and configuration files of a cluster's programs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

PAUSE = "docker.io/herringbone-tests/busybox:1"
SERVICE_RANGE, SERVICE_ADDRESS = "10.89.0.0/24", "10.89.0.1"
SUBNET = "10.88.{}.0/24"
_PORT = 443
# $0 is the node's folder. Paths that containerd and kubelet have built in: sockets of shims, logs, plug-ins of devices.
MOUNTS = """
mount --bind "$0/lib" /var/lib
mount --bind "$0/log" /var/log
mount -t tmpfs run /run
exec "$@"
"""
_CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # A process here may not lower its OOM score.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
"""


def api_server(folder: Path, address: str) -> list[str]:
    return [
        "--etcd-servers=http://127.0.0.1:2379",
        f"--secure-port={_PORT}",
        "--bind-address=0.0.0.0",
        f"--advertise-address={address}",
        f"--cert-dir={folder}/certificates",
        f"--token-auth-file={folder}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        f"--service-account-key-file={folder}/account.pub",
        f"--service-account-signing-key-file={folder}/account.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def controllers(folder: Path) -> list[str]:
    return [
        f"--kubeconfig={folder}/controllers.json",
        "--leader-elect=false",
        "--port=0",
        "--secure-port=0",
        f"--service-account-private-key-file={folder}/account.key",
        f"--root-ca-file={folder}/certificates/apiserver.crt",
    ]


def scheduler(folder: Path) -> list[str]:
    return [f"--kubeconfig={folder}/scheduler.json", "--leader-elect=false", "--port=0", "--secure-port=0"]


def kubelet(folder: Path, node: str, address: str) -> list[str]:
    return [
        f"--config={folder}/{node}/kubelet.json",
        f"--kubeconfig={folder}/{node}.json",
        f"--root-dir={folder}/{node}/lib/kubelet",
        f"--hostname-override={node}",
        f"--node-ip={address}",
        "--container-runtime=remote",
        f"--container-runtime-endpoint=unix://{folder}/{node}/containerd.sock",
    ]


def kubeconfig(server: str, folder: Path, token: str, namespace: str = "default") -> str:
    """Return a kubeconfig as JSON, which is YAML."""
    cluster = {"server": f"https://{server}:{_PORT}", "certificate-authority": f"{folder}/certificates/apiserver.crt"}
    content: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user", "namespace": namespace}}],
        "current-context": "test",
    }
    return json.dumps(content)


def make_keys(folder: Path) -> None:
    """Make the key pair with which tokens of service accounts are signed."""
    key, public = folder / "account.key", folder / "account.pub"
    for words in (("genrsa", "-out", str(key), "2048"), ("rsa", "-in", str(key), "-pubout", "-out", str(public))):
        subprocess.run(("openssl", *words), check=True, capture_output=True)


def write_node(folder: Path, node: str, number: int, cgroup: str, names: str) -> None:
    """Write the files of one node; `names` is the address of the name server."""
    place = folder / node
    for name in ("cni", "lib/kubelet", "log", "state"):
        (place / name).mkdir(parents=True)
    (place / "containerd.toml").write_text(_CONTAINERD.format(folder=place, pause=PAUSE))
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": SUBNET.format(number)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": f"{place}/addresses",
        },
    }
    (place / "cni/10-pods.conflist").write_text(
        json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]})
    )
    settings = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "50Mi"},
        "imageGCHighThresholdPercent": 100,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "makeIPTablesUtilChains": False,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [names],
        "clusterDomain": "cluster.local",
        "nodeStatusUpdateFrequency": "2s",
        # The second node's files of logs are as small as a kubelet's check every 10 s lets them be.
        **({} if number == 1 else {"containerLogMaxSize": "100Ki", "containerLogMaxFiles": 2}),
    }
    (place / "kubelet.json").write_text(json.dumps(settings))
