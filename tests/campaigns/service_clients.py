"""Start a service and train by clients whose packages are too large for the tests: `sagemaker` 3.x and Airflow.

Usage: python tests/campaigns/service_clients.py [--airflow PYTHON] [--v3 PYTHON] [--image IMAGE]. Each PYTHON has the
packages that `service_airflow.py` or `service_v3.py` names. Airflow's jobs run on `local_process`, and also in
containers where IMAGE, of this machine's engine, is given. `sagemaker` 3.x needs IMAGE. The last line is JSON: the
seconds of each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.serve import test_live as live  # noqa: E402

HERE = Path(__file__).parent


def run(service: live.Running, name: str, command: list[str]) -> float:
    """Run a client with nothing but the endpoint, the key and a home in its environment; return its seconds."""
    home = service.folder / name
    home.mkdir()
    # Otherwise it reports each call to an address of AWS's.
    config = home / "config.yaml"
    config.write_text("{SchemaVersion: '1.0', SageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}}")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(config)}
    started = time.monotonic()
    process = subprocess.run(command, env={**environment, **service.environment()}, stdout=subprocess.PIPE, text=True)
    print(process.stdout[-3000:], flush=True)
    assert process.returncode == 0, f"{name}: exit code {process.returncode}"
    model = process.stdout.splitlines()[-1].removeprefix("model s3://")
    assert (service.buckets / model).is_file(), model
    # No client has changed the data that it read.
    assert (service.buckets / "mine/data/points").read_text() == "1 2 3"
    return round(time.monotonic() - started, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--airflow")
    parser.add_argument("--v3")
    parser.add_argument("--image")
    options = parser.parse_args()
    seconds = {}
    for backend in ["local_process", *(["local"] if options.image else [])]:
        with tempfile.TemporaryDirectory(prefix="service-clients-") as folder:
            service = live.Running(Path(folder), backend=backend)
            try:
                image = options.image or "pytorch-training"
                if options.airflow:
                    command = [options.airflow, str(HERE / "service_airflow.py"), image]
                    seconds[f"airflow on {backend}"] = run(service, "airflow", command)
                if options.v3 and backend == "local":
                    source = service.buckets / "mine" / "src" / "train.py"
                    data = Path(folder) / "points-of-v3"
                    data.mkdir()
                    (data / "points").write_text("1 2 3")
                    command = [options.v3, str(HERE / "service_v3.py"), str(source), str(data), image]
                    seconds["sagemaker 3.x on local"] = run(service, "v3", command)
            finally:
                service.end()
            assert "Traceback" not in (Path(folder) / "service.log").read_text()
    print(json.dumps(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
