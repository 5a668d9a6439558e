"""torchdata's `StatefulDataLoader` goes on as torch's own loader does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PYTHON = Path(os.environ.get("TEST_HUGGINGFACE_PYTHON", ROOT / ".venv-huggingface" / "bin" / "python"))
SOURCES = [str(ROOT / folder) for folder in ("", "contract", "sdk", "entrypoints", "parallel")]

SCRIPT = """
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from herringbone_parallel.torch.position.loader import track
from herringbone_parallel.torch.position.tracker import Place
from tests.parallel.torch.position import test_loader, test_streams

for module, made in (
    (test_loader, test_loader.shuffled),
    (test_loader, test_loader.of_a_rank),
    (test_streams, test_streams.Counting),
):
    for workers in (0, 2):
        options = {"kind": StatefulDataLoader, "num_workers": workers}
        if module is test_streams:
            options["batch_size"] = 3
        make = (lambda: made) if module is test_loader else made
        whole, _ = module.train(make(), **options)
        before, saved = module.train(make(), stop=4, **options)
        after, _ = module.train(make(), saved=saved, **options)
        assert repr(before + after) == repr(whole), (made, workers)
dataset = test_loader.Augmented()
loader = StatefulDataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset, 3, 0, shuffle=False))
track(loader).resume(Place(0, 8, 2, test_loader.SAMPLES))
assert next(iter(loader))[0].tolist() == [8, 11, 14, 17]
"""


@pytest.mark.huggingface
def test_goes_on_as_torchs_own() -> None:
    if not PYTHON.exists():
        pytest.skip("there is no Python with torchdata: tests/huggingface/setup makes .venv-huggingface")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)}
    command = [PYTHON, "-W", "ignore", "-c", SCRIPT]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
