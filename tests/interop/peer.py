"""Provide what AWS's SDK needs for a job in its local mode: a Compose it accepts, an answer of STS, no telemetry."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.aws_mock import mock_aws

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
_FOLDER_LABEL = "com.docker.compose.project.working_dir"
_NETWORK = "sagemaker-local"


def compose() -> Path:
    """Return the path of Compose 2. Raises `LookupError`, whose message names the remedy, where there is none."""
    process = subprocess.run([FOLDER / "compose"], capture_output=True, text=True)
    if process.returncode:
        raise LookupError(process.stderr.strip())
    return Path(process.stdout.strip())


def python(version: int) -> Path:
    """Return the Python with the peer's major version 2 or 3; the environment may not exist."""
    return ROOT / {2: ".venv-peer", 3: ".venv-peer-v3"}[version] / "bin" / "python"


@contextmanager
def surroundings(compose: Path) -> Iterator[dict[str, str]]:
    """Yield the environment for the peer's process; remove its jobs' containers and files after the block."""
    # The peer sends GetCallerIdentity to AWS before it runs a local job.
    with tempfile.TemporaryDirectory(prefix="hb-peer-") as folder, mock_aws(Path(folder) / "aws.log") as url:
        # The peer requires "v2" in the version of the `docker compose` plugin, but accepts any program of this name.
        (Path(folder) / "docker-compose").symlink_to(compose)
        config = Path(folder) / "config.yaml"
        config.write_text("SchemaVersion: '1.0'\nSageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}\n")
        job_files = Path(folder) / "jobs"
        job_files.mkdir()
        try:
            yield {
                **os.environ,
                "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
                "TMPDIR": str(job_files),
                "STS_URL": url,
                "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_ACCESS_KEY_ID": "none",
                "AWS_SECRET_ACCESS_KEY": "none",
                "AWS_DEFAULT_REGION": "us-west-2",
                "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
                "SAGEMAKER_USER_CONFIG_OVERRIDE": str(config),
                "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": os.devnull,
            }
        finally:
            _remove_containers(job_files)


def _remove_containers(folder: Path) -> None:
    """Remove the containers of jobs below a folder, and the network unless other containers use it."""
    lines = _docker("ps", "--all", "--format", f'{{{{.ID}}}} {{{{.Label "{_FOLDER_LABEL}"}}}}').splitlines()
    containers = [line.split()[0] for line in lines if str(folder) in line]
    if containers:
        _docker("rm", "--force", "--volumes", *containers)
    _docker("network", "rm", _NETWORK)


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
