"""Fixtures: the peer, its Compose, and an image with its toolkit. A missing one skips the test, with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop import peer

# Writes what a training script sees in a container to a file that becomes part of the model.
SCRIPT = """
import glob, json, os, socket, sys, time
sys.path.insert(0, os.path.dirname(__file__))
from helper import GREETING

if "--fail" in sys.argv:
    raise ValueError("a loss that is not a number")
with open(os.path.join(os.environ["SM_CHANNEL_TRAINING"], "data.txt")) as file:
    data = file.read()
rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0"))
host = os.environ["SM_CURRENT_HOST"]
# The toolkit starts once all hosts' names resolve, and a host that ends takes its name with it. So wait for all hosts.
# The file is named by the container, because under the toolkit's MPI all ranks get the first host's name.
open(f"/opt/ml/shared/up-{socket.gethostname()}", "w").close()
while len(glob.glob("/opt/ml/shared/up-*")) < len(json.loads(os.environ["SM_HOSTS"])):
    time.sleep(0.01)
report = {
    "argv": sys.argv[1:],
    "data": data,
    "greeting": GREETING,
    "hosts": json.loads(os.environ["SM_HOSTS"]),
    "host": host,
    "hyperparameters": json.loads(os.environ["SM_HPS"]),
    "mine": os.environ.get("MINE"),
    "job": os.environ["TRAINING_JOB_NAME"],
    "world": os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")),
}
print("rank", rank, "is here", flush=True)
with open(os.path.join(os.environ["SM_MODEL_DIR"], f"{host}-{rank}.json"), "w") as file:
    json.dump(report, file)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with code/train.py, a module next to it, and data/data.txt."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "code" / "helper.py").write_text("GREETING = 'grüezi'\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data.txt").write_text("1 2 3")
    return tmp_path


def read_model(uri: str) -> list[dict[str, Any]]:
    """Return the JSON that the ranks wrote, in the order of the file names."""
    with tarfile.open(uri.removeprefix("file://")) as archive:
        names = sorted(name for name in archive.getnames() if name.endswith(".json"))
        return [json.load(archive.extractfile(name)) for name in names]  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def toolkit(engine: Any) -> str:
    """Return the image of tests/interop/setup: HERRINGBONE_TOOLKIT_IMAGE, else the newest one of the engine."""
    override = os.environ.get("HERRINGBONE_TOOLKIT_IMAGE")
    images = engine.images(name="herringbone-interop")
    if not override and not images:
        pytest.skip("no image with the peer's toolkit: run tests/interop/setup")
    return override or str(max(images, key=lambda image: image["Created"])["RepoTags"][0])


Fit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def fit_v2(engine: Any) -> Iterator[Fit]:
    """Run a job with the released peer's own local mode: `fit_v2(image_uri=..., script=..., instance_count=1)`."""
    if not peer.python(2).exists():
        pytest.skip("no peer: run tests/interop/setup")
    try:
        compose = peer.compose()
    except LookupError as error:
        pytest.skip(str(error))
    with peer.surroundings(compose) as environ:

        def fit(**job: Any) -> subprocess.CompletedProcess[str]:
            command = [peer.python(2), Path(__file__).with_name("fit_v2.py"), json.dumps(job, default=str)]
            return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)

        yield fit
