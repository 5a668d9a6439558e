"""What AWS's SDK needs for a job of its local mode: a Compose that it accepts, an answer from STS, no telemetry."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.sts import sts

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_FOLDER_LABEL = "com.docker.compose.project.working_dir"
_NETWORK = "sagemaker-local"


def compose() -> Path:
    """Return the path of Compose 2. Raises `LookupError` with what to do where there is none."""
    found = subprocess.run([HERE / "compose"], capture_output=True, text=True)
    if found.returncode:
        raise LookupError(found.stderr.strip())
    return Path(found.stdout.strip())


def python(version: int) -> Path:
    """Return the Python in whose environment the peer's major version 2 or 3 is; it may not have been made."""
    return ROOT / {2: ".venv-peer", 3: ".venv-peer-v3"}[version] / "bin" / "python"


@contextmanager
def surroundings(compose: Path) -> Iterator[dict[str, str]]:
    """Yield the environment for the peer's process. What its jobs left is removed behind the block."""
    with tempfile.TemporaryDirectory(prefix="hb-peer-") as folder, sts() as url:
        # It wants the text "v2" of the `docker` command's plugin, and takes any program of this name.
        (Path(folder) / "docker-compose").symlink_to(compose)
        config = Path(folder) / "config.yaml"
        config.write_text("SchemaVersion: '1.0'\nSageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}\n")
        left = Path(folder) / "left"
        left.mkdir()
        try:
            yield {
                **os.environ,
                "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
                "TMPDIR": str(left),
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
            _clear(left)


def _clear(folder: Path) -> None:
    """Remove the containers of the jobs below a folder, and the network when nobody else's are on it."""
    listed = _docker("ps", "--all", "--format", f'{{{{.ID}}}} {{{{.Label "{_FOLDER_LABEL}"}}}}').splitlines()
    ours = [line.split()[0] for line in listed if str(folder) in line]
    if ours:
        _docker("rm", "--force", "--volumes", *ours)
    _docker("network", "rm", _NETWORK)


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
