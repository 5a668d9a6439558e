"""Measure the time from fit() to the script's first line in pods, and compare with a bare pod of the same image.

Usage: python benchmarks/kubernetes/run.py [--pairs 10] [--image herringbone/pytorch:2.13.0-cpu-...]. Root; see
tests/kubernetes/setup. The last line is JSON: medians in seconds, and their ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.kubernetes.cluster import Cluster, missing  # noqa: E402
from tests.kubernetes.images import SMALL  # noqa: E402

from herringbone import Estimator  # noqa: E402 - found on the path of the line above
from herringbone.backends.kubernetes import api as api_of  # noqa: E402
from herringbone.backends.kubernetes.api import Api, path_of  # noqa: E402

NAMESPACE = "team-a"
SCRIPTS = {"plain": "print('first line', flush=True)\n", "torch": "import torch\nprint('first line', flush=True)\n"}
_PAUSE_SECONDS = 0.3
_DEADLINE_SECONDS = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="counted pairs, after one warm-up pair")
    parser.add_argument("--image", help="an image of this machine's container engine, which has torch")
    options = parser.parse_args()
    if (reason := missing()) is not None:
        sys.exit(reason)
    kinds = ["plain"] if options.image is None else ["plain", "torch"]
    image = options.image or SMALL
    with tempfile.TemporaryDirectory(prefix="hbk-") as name, Cluster(Path(name)) as cluster:
        if options.image is not None:
            archive = Path(name, "image.tar")
            subprocess.run(("docker", "save", f"--output={archive}", image), check=True)
            cluster.load(archive)
            archive.unlink()
            image = f"docker.io/{image}"
        prepare(cluster, Path(name))
        api = api_of.Cluster(None)
        rows = []
        for number in range(options.pairs + 1):
            row = {}
            for kind in kinds:
                row[f"{kind}, pod"] = bare_pod(api, image, SCRIPTS[kind], f"bare-{kind}-{number}")
                for hosts in (1, 2):
                    row[f"{kind}, fit on {hosts}"] = fit(image, SCRIPTS[kind], hosts, f"{kind}-{hosts}-{number}")
            print({variant: round(value, 2) for variant, value in row.items()}, file=sys.stderr)
            rows.append(row)
    print(json.dumps(summary(rows[1:], image)))


def prepare(cluster: Cluster, folder: Path) -> None:
    os.chdir(folder)
    os.environ |= {"KUBECONFIG": str(cluster.kubeconfig), "HERRINGBONE_HOME": str(folder / "home")}
    cluster.kubectl("create", "namespace", NAMESPACE)
    results = folder / "results"
    results.mkdir()
    results.chmod(0o777)
    folder.chmod(0o711)
    cluster.make_volume("results", NAMESPACE, results)
    account = ("get", "serviceaccount", "default", f"--namespace={NAMESPACE}")
    cluster.wait(lambda: cluster.try_kubectl(*account).returncode == 0, "the namespace has a service account")


def bare_pod(api: Api, image: str, script: str, name: str) -> float:
    """Run the script in a pod of its own. Return the seconds until its first line, by the kubelet's time stamp."""
    container = {"name": "host", "image": image, "command": ["python3", "-c", script]}
    spec = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    began = time.time()
    api.call("POST", path_of("Pod", NAMESPACE), pod)
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while api.call("GET", path_of("Pod", NAMESPACE, name))["status"]["phase"] != "Succeeded":
        assert time.monotonic() < deadline, f"pod {name} does not end"
        time.sleep(_PAUSE_SECONDS)
    stamp = api.text(path_of("Pod", NAMESPACE, name, "log"), timestamps="true").split()[0].decode()
    api.call("DELETE", path_of("Pod", NAMESPACE, name))
    return datetime.fromisoformat(f"{stamp[:26].rstrip('Z'):0<26}+00:00").timestamp() - began


def fit(image: str, script: str, hosts: int, name: str) -> float:
    """Run the script as a job. Return the seconds from fit() to the first line of a rank, by the kubelet's stamp."""
    Path("train.py").write_text(script)
    estimator = Estimator(
        "train.py",
        image_uri=image,
        instance_type=f"k8s:{NAMESPACE}",
        instance_count=hosts,
        output_path="pvc://results/jobs",
    )
    began = time.time()
    job = estimator.fit(wait=False, job_name=name)
    job.wait()
    assert job.status == "Completed", job.failure
    first = next(line.time for line in job.logs() if line.rank is not None)
    job.remove()
    return first.timestamp() - began


def summary(rows: list[dict[str, float]], image: str) -> dict[str, object]:
    medians = {variant: round(statistics.median(row[variant] for row in rows), 2) for variant in rows[0]}
    ratios = {
        variant: round(statistics.median(row[variant] / row[f"{variant.partition(',')[0]}, pod"] for row in rows), 2)
        for variant in medians
        if "fit" in variant
    }
    return {"image": image, "pairs": len(rows), "load": os.getloadavg()[0], "seconds": medians, "ratios": ratios}


if __name__ == "__main__":
    main()
