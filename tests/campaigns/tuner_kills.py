"""Kill the searcher of a tuning job again and again; its result must equal that of an undisturbed one.

Usage: python tests/campaigns/tuner_kills.py [--kills 20] [--strategies Random,Hyperband,Bayesian] [--short]. The last
line is JSON. Each strategy searches twice on `local_process` with the same seed: in peace, and with a searcher that
gets SIGKILL at random moments, after each of which `attach` starts another one. Compared are the trials (number,
values, epochs, state, objective) and the best job. Each trial's script writes a line when it begins, so a trial that
was lost or ran twice is seen.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from herringbone import ContinuousParameter, Estimator, HyperbandStrategyConfig, HyperparameterTuner, StrategyConfig
from herringbone.records.home import HOME_VARIABLE
from herringbone.system.processes import is_alive, pid_of
from herringbone.tuner.own import OwnTuning

SCRIPT = """
import argparse, json, os, time
from herringbone import log_metrics

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--epochs", type=int)
arguments = parser.parse_args()
with open(os.environ["RUNS"], "a") as runs:
    runs.write(json.loads(os.environ["SM_TRAINING_ENV"])["job_name"] + "\\n")
state = os.path.join(os.environ["SM_CHECKPOINT_DIR"], "epoch")
epoch = int(open(state).read()) if os.path.exists(state) else 0
while epoch < arguments.epochs:
    epoch += 1
    time.sleep(0.01)
    log_metrics({"accuracy": (1 - abs(arguments.lr - 0.3)) * epoch / (epoch + 1)}, step=epoch)
    with open(state, "w") as file:
        file.write(str(epoch))
"""
SECONDS = 300.0


def tuner_of(folder: Path, strategy: str, trials: int) -> HyperparameterTuner:
    """Return the tuner of one search; all searches of a strategy have the same definition."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    estimator = Estimator(
        str(script),
        instance_type="local_process",
        hyperparameters={"epochs": 9},
        environment={"RUNS": str(folder / "runs.txt"), "HERRINGBONE_REPORT": "off"},
    )
    hyperband = strategy == "Hyperband"
    return HyperparameterTuner(
        estimator,
        "accuracy",
        {"lr": ContinuousParameter(0.001, 1.0, scaling_type="Logarithmic")},
        strategy=strategy,
        max_jobs=trials,
        max_parallel_jobs=2,
        random_seed=7,
        strategy_config=StrategyConfig(HyperbandStrategyConfig(max_resource=9, min_resource=1)) if hyperband else None,
    )


def kill(name: str, chance: random.Random, pause: float) -> bool:
    """Kill the searcher after a random moment; return whether it still searched then."""
    tuning = HyperparameterTuner.attach(name).latest_tuning_job
    assert isinstance(tuning, OwnTuning)
    time.sleep(chance.uniform(0.0, pause))
    searcher = tuning.state().searcher
    if tuning.state().done or searcher is None or not is_alive(searcher):
        return False
    os.kill(pid_of(searcher), signal.SIGKILL)
    while is_alive(searcher):
        time.sleep(0.001)
    return not tuning.state().done


def search(folder: Path, strategy: str, trials: int, kills: int, pause: float = 0.0) -> dict[str, Any]:
    """Search to the end, with kills at most `pause` seconds apart; return the result, and how often each script ran."""
    folder.mkdir()
    tuner = tuner_of(folder, strategy, trials)
    begin = time.monotonic()
    tuning = tuner.fit(wait=False, job_name=f"{strategy.lower()}-{folder.name}")
    chance, killed = random.Random(1), 0
    # Kills are spread over the search: most hit it between two trials or in a submission.
    while killed < kills and not tuning.state().done:
        killed += kill(tuning.name, chance, pause)
    HyperparameterTuner.attach(tuning.name).wait()
    trials_of = [
        [record.number, record.values, record.resource, record.resumes, record.status, record.objective]
        for record in tuning.trials()
    ]
    jobs = [record.job for record in tuning.trials()]
    ran = Counter((folder / "runs.txt").read_text().split())
    return {
        "seconds": round(time.monotonic() - begin, 1),
        "kills": killed,
        "trials": trials_of,
        "best": tuner.best_training_job().rpartition("-")[2],
        "lost": [job for job in jobs if ran[job] == 0],
        "twice": [job for job in ran if ran[job] > 1 or job not in jobs],
    }


def campaign(strategy: str, trials: int, kills: int, folder: Path) -> dict[str, object]:
    """Compare a search in peace with one that is killed; `wrong` is empty if all is well."""
    peace = search(folder / "peace", strategy, trials, 0)
    killed = search(folder / "killed", strategy, trials, kills, peace["seconds"] / (kills + 1))
    wrong = [name for name in ("trials", "best") if peace[name] != killed[name]]
    wrong += [f"{name}: {killed[name]}" for name in ("lost", "twice") if killed[name]]
    if killed["kills"] != kills:
        wrong.append(f"{killed['kills']} kills: the search was over before all {kills}")
    seconds = f"{peace['seconds']} s in peace, {killed['seconds']} s with {killed['kills']} kills"
    print(f"{strategy}: {seconds}: {wrong or 'equal'}")
    return {"trials": len(peace["trials"]), "kills": killed["kills"], "wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--strategies", default="Random,Hyperband,Bayesian")
    parser.add_argument("--short", action="store_true", help="one strategy, six trials, three kills")
    arguments = parser.parse_args()
    strategies = ["Hyperband"] if arguments.short else arguments.strategies.split(",")
    trials, kills = (6, 3) if arguments.short else (arguments.trials, arguments.kills)
    results = {}
    for strategy in strategies:
        with tempfile.TemporaryDirectory(prefix="hb-") as temporary:
            os.environ[HOME_VARIABLE] = f"{temporary}/home"
            results[strategy] = campaign(strategy, trials, kills, Path(temporary))
    print(json.dumps(results))
    return int(any(result["wrong"] for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
