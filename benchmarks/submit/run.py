"""Measure the time from fit() to CreateTrainingJob, for our SDK and the peer's in turn, with one mock of AWS.

Usage: python benchmarks/submit/run.py [--repeats 7] [--files 1000]. The last line is JSON: medians in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
from tests.aws_mock import mock_aws  # noqa: E402 - found on the path of the line above

PEER_PYTHON = ROOT / ".venv-peer" / "bin" / "python"
PROGRAMS = {
    "ours": (sys.executable, str(HERE / "ours.py")),
    "peer_v2": (str(PEER_PYTHON), str(HERE / "peer_v2.py")),
}
IMAGE = "999999999999.dkr.ecr.eu-central-1.amazonaws.com/herringbone/pytorch:1"
ROLE = "training"
AIM = 1 / 3
WORDS = [f"{verb}_{noun}" for verb in ("load", "mix", "scale", "drop") for noun in ("batch", "image", "label", "row")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="counted rounds, after one warm-up round")
    parser.add_argument("--files", type=int, default=1000, help="files of the source folder")
    options = parser.parse_args()
    if not PEER_PYTHON.exists():
        sys.exit(f"{PEER_PYTHON} is missing: run tests/peer/setup")
    with tempfile.TemporaryDirectory() as name, mock_aws(Path(name) / "log") as address:
        folder = Path(name) / "src"
        num_bytes = write_source(folder, options.files)
        environ = environment(address, Path(name))
        make_role(environ)
        rows = [round_of(number, folder, environ) for number in range(options.repeats + 1)][1:]
    print(json.dumps(summary(rows, options.files, num_bytes)))


def write_source(folder: Path, num_files: int) -> int:
    """Write modules of about 4 KB that compress like code. Return the bytes of all files."""
    source = random.Random(0)  # noqa: S311  the same files in every run
    folder.mkdir()
    (folder / "train.py").write_text("print('training')\n")
    for number in range(num_files - 1):
        path = folder / f"package_{number % 20}" / f"module_{number}.py"
        path.parent.mkdir(exist_ok=True)
        lines = [f"def {source.choice(WORDS)}_{row}(x):\n    return x * {source.random()}\n" for row in range(70)]
        path.write_text("\n".join(lines))
    return sum(path.stat().st_size for path in folder.rglob("*.py"))


def environment(address: str, scratch: Path) -> dict[str, str]:
    """Return the environment of a user with credentials, without any settings of this machine."""
    config = scratch / "sagemaker.yaml"
    config.write_text("SchemaVersion: '1.0'\nSageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}\n")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SAGEMAKER_"))}
    return {
        **inherited,
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "mock",
        "AWS_SECRET_ACCESS_KEY": "mock",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
        "SAGEMAKER_USER_CONFIG_OVERRIDE": str(config),
        "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": os.devnull,
        "HERRINGBONE_HOME": str(scratch / "home"),
    }


def make_role(environ: dict[str, str]) -> None:
    trust = {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}
    program = (
        "import boto3, sys; boto3.client('iam').create_role(RoleName=sys.argv[1], AssumeRolePolicyDocument=sys.argv[2])"
    )
    policy = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    subprocess.run([sys.executable, "-c", program, ROLE, policy], env=environ, check=True, timeout=60)


def round_of(number: int, folder: Path, environ: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Change one file, then submit the folder twice with each SDK: changed, and unchanged."""
    (folder / "train.py").write_text(f"print('training, round {number}')\n")
    names = list(PROGRAMS) if number % 2 else list(reversed(PROGRAMS))
    reports = {}
    for state in ("changed", "unchanged"):
        for name in names:
            report = submit(name, folder, f"{name.replace('_', '-')}-{state}-{number}", environ)
            reports[f"{name} {state}"] = report
            print(f"round {number} {name} {state}: {report}", flush=True)
    return reports


def submit(name: str, folder: Path, job: str, environ: dict[str, str]) -> dict[str, Any]:
    began = time.perf_counter()
    run = subprocess.run(
        [*PROGRAMS[name], str(folder), job, IMAGE, ROLE], env=environ, capture_output=True, text=True, timeout=300
    )
    if run.returncode:
        raise SystemExit(f"{name} failed:\n{run.stdout[-2_000:]}{run.stderr[-2_000:]}")
    report: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return {**report, "process": time.perf_counter() - began}


def summary(rows: list[dict[str, dict[str, Any]]], num_files: int, num_bytes: int) -> dict[str, Any]:
    def median(key: str, measure: str) -> float:
        return round(statistics.median(row[key][measure] for row in rows), 3)

    def ratio(state: str) -> float:
        shares = [row[f"ours {state}"]["seconds"] / row[f"peer_v2 {state}"]["seconds"] for row in rows]
        return round(statistics.median(shares), 3)

    return {
        "files": num_files,
        "source_bytes": num_bytes,
        "rounds": len(rows),
        "seconds": {key: median(key, "seconds") for key in rows[0]},
        "process_seconds": {key: median(key, "process") for key in rows[0]},
        "uploads": {key: max(row[key]["uploads"] for row in rows) for key in rows[0]},
        "calls": {key: max(row[key]["calls"] for row in rows) for key in rows[0]},
        "ours_over_peer": {state: ratio(state) for state in ("changed", "unchanged")},
        "aim": round(AIM, 3),
        "aim_met": ratio("changed") <= AIM,
    }


if __name__ == "__main__":
    main()
