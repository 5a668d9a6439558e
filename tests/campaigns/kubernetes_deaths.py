"""Deaths on a real cluster: every row of the matrix once, then kills at random over many jobs that are retried.

Usage, as root: `python -m tests.campaigns.kubernetes_deaths [--deaths NAME,...] [--jobs 20] [--kills 50]`.
Nobody looks at a job before its model is there. Each rank notes its steps in the claim, so a step of an older attempt
after the first one of a newer attempt is seen, and the weights tell whether one was lost. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from herringbone import Estimator, TrainingJob
from tests.kubernetes import deaths
from tests.kubernetes.cluster import NODES, Cluster
from tests.kubernetes.deaths import DEATHS, NAMESPACE, OF_PODS, SCRIPT, Victim
from tests.kubernetes.images import SMALL
from tests.waiting import wait_until

_SECONDS = 400.0
# A rank's death is the script's, so that only a pattern in the log has it retried.
_PATTERN = {"log_policies": {"from step": "restart"}}
_KINDS = "pods,jobs,services,secrets,configmaps"


class Trial(NamedTuple):
    """One job, and where its files are."""

    job: TrainingJob
    folder: Path
    model: Path

    def check(self) -> dict[str, Any]:
        """Check an ended job, remove it, and return what it came to."""
        wait_until(lambda: self.job.status != "InProgress", 60)
        weight = json.loads(self.model.read_text())["weight"] if self.model.exists() else None
        deaths.check_no_step_doubled(self.folder)
        times = sorted(time for _, _, time in deaths.steps_of(self.folder, 0))
        attempts = self.job.describe().get("Attempts", [])
        result = {
            "status": self.job.status,
            "equal": weight == deaths.expected_weight(),
            "causes": [attempt["FailureReason"] for attempt in attempts],
            "pause": round(max((after - before for before, after in pairwise(times)), default=0.0), 1),
        }
        self.job.remove()
        return result


class Campaign:
    """Jobs in the namespace of a cluster, with a claim that is the folder `results`."""

    def __init__(self, cluster: Cluster, results: Path) -> None:
        self.cluster, self.results = cluster, results

    def submit(self, name: str, **more: Any) -> Trial:
        Path("train.py").write_text(SCRIPT)
        job = Estimator(
            "train.py",
            instance_type="k8s:team-a",
            instance_count=2,
            image_uri=SMALL,
            output_path="pvc://results/jobs",
            distribution={"torch_distributed": {"enabled": True}},
            **deaths.options(name, **more),
        ).fit(wait=False, job_name=name)
        model = self.results / f"jobs/{name}/hosts/algo-1/ml/model/weights.json"
        return Trial(job, self.results / "checkpoints" / name, model)

    def die(self, number: int, death: str) -> dict[str, Any]:
        """Run a job, have a host die once, and let the job end."""
        seconds = "3" if death == "kubelet stopped" else "0.25"
        pattern = _PATTERN if death == "rank" else {}
        trial = self.submit(f"death-{number}", environment={"STEP_SECONDS": seconds}, **pattern)
        wait_until(lambda: len(deaths.steps_of(trial.folder, 1)) > 3, 60)
        DEATHS[death](Victim(self.cluster, trial.job.name, "algo-2", trial.folder))
        wait_until(trial.model.exists, _SECONDS)
        if death == "kubelet stopped":
            # What is left on its node is left until it is back.
            for node in NODES:
                if f"kubelet-{node}" not in self.cluster._processes:
                    self.cluster.run(f"kubelet-{node}")
        result = trial.check()
        self.cluster.kubectl("uncordon", *NODES)
        return {"death": death, **result, "left": self.left()}

    def left(self) -> int:
        """Wait for the end of all that was removed, and return what is left."""
        names: list[str] = []

        def is_empty() -> bool:
            names[:] = self.cluster.kubectl(
                "get", _KINDS, NAMESPACE, "--selector=dev.herringbone/job", "--output=name"
            ).split()
            return not names and not any(map(self.cluster.processes, NODES))

        try:
            wait_until(is_empty, 150)
        except AssertionError:
            print("left:", names, file=sys.stderr)
        return len(names)

    def kill_at_random(self, jobs: int, kills: int, at_once: int) -> dict[str, Any]:
        """Run jobs side by side, and let hosts of them die, each as often as the others."""
        chance, started, results = random.Random(7), 0, []
        rest = {number: kills // jobs + (number < kills % jobs) for number in range(jobs)}
        running: dict[int, Trial] = {}
        # The steps that a job takes before its next death.
        due: dict[int, int] = {}
        counts: dict[str, int] = dict.fromkeys(OF_PODS, 0)
        while running or started < jobs:
            if started < jobs and len(running) < at_once:
                more = {"max_retry_attempts": 20, "environment": {"STEP_SECONDS": "0.5"}}
                running[started] = self.submit(f"kill-{started}", **more, **(_PATTERN if started % 2 else {}))
                due[started], started = chance.randint(2, 6), started + 1
            for number, trial in list(running.items()):
                if trial.model.exists():
                    results.append({"kills": trial.job.name, "missed": rest[number], **trial.check()})
                    print(json.dumps(results[-1]), flush=True)
                    del running[number]
                    continue
                steps = min(len(deaths.steps_of(trial.folder, rank)) for rank in (0, 1))
                is_training = steps and time.time() - deaths.steps_of(trial.folder, 1)[-1][2] < 1.0
                if rest[number] and steps >= due[number] and is_training:
                    names = [name for name in OF_PODS if number % 2 or name != "rank"]
                    name = chance.choice(names)
                    try:
                        OF_PODS[name](
                            Victim(self.cluster, trial.job.name, f"algo-{chance.choice((1, 2))}", trial.folder)
                        )
                    except (AssertionError, IndexError) as error:
                        print(f"{name}: {str(error)[:200]}", file=sys.stderr, flush=True)
                        continue
                    counts[name] += 1
                    rest[number], due[number] = rest[number] - 1, steps + chance.randint(3, 8)
            time.sleep(0.2)
        lost = [result for result in results if result["status"] != "Completed" or not result["equal"]]
        pauses = sorted(result["pause"] for result in results)
        return {
            "jobs": jobs,
            "kills": sum(counts.values()),
            "of": counts,
            "lost": len(lost),
            "attempts": sum(len(result["causes"]) for result in results),
            "median_pause": pauses[len(pauses) // 2],
            "left": self.left(),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deaths", default=",".join(DEATHS))
    for name, default in (("jobs", 20), ("kills", 50), ("at-once", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    os.umask(0)
    with tempfile.TemporaryDirectory(prefix="hbk-") as folder, Cluster(Path(folder)) as cluster:
        return run(cluster, asked)


def run(cluster: Cluster, asked: argparse.Namespace) -> int:
    work = Path(tempfile.mkdtemp(prefix="hbk-claim-"))
    try:
        work.chmod(0o777)
        cluster.kubectl("create", "namespace", "team-a")
        cluster.wait(
            lambda: cluster.try_kubectl("get", "serviceaccount", "default", NAMESPACE).returncode == 0, "an account"
        )
        (work / "results").mkdir(mode=0o777)
        cluster.make_volume("results", "team-a", work / "results")
        deaths.make_account(cluster, "team-a")
        for name, value in {"HOME": work / "home", "STOP_GRACE": 5, "HEARTBEAT": 1}.items():
            os.environ[f"HERRINGBONE_{name}"] = str(value)
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        os.chdir(work)
        campaign, rows = Campaign(cluster, work / "results"), []
        for number, death in enumerate(filter(None, asked.deaths.split(","))):
            rows.append(campaign.die(number, death))
            print(json.dumps(rows[-1]), flush=True)
        kills = campaign.kill_at_random(asked.jobs, asked.kills, asked.at_once) if asked.kills else {}
        print(json.dumps({"matrix": rows, "random": kills}))
        bad = [row for row in rows if row["status"] != "Completed" or not row["equal"] or row["left"]]
        return int(bool(bad) or bool(kills and (kills["lost"] or kills["left"])))
    finally:
        os.chdir("/")
        cluster.try_kubectl("delete", "namespace", "team-a", "--timeout=150s")
        cluster.try_kubectl("delete", "persistentvolume", "results", "--wait=false")
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
