"""Lightning's Trainer takes our logger, which is no subclass of its own, and the values of `self.log` become events."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import herringbone_contract
import herringbone_parallel

ROOT = Path(__file__).parents[3]
# scripts/nightly names Pythons with other releases.
PYTHON = Path(os.environ.get("TEST_HUGGINGFACE_PYTHON", ROOT / ".venv-huggingface" / "bin" / "python"))
SOURCES = [str(Path(package.__file__).parents[1]) for package in (herringbone_contract, herringbone_parallel)]
SCRIPT = """
import sys
import torch
from lightning.pytorch import LightningModule, Trainer
from herringbone_parallel.torch.lightning import JobLogger

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.save_hyperparameters()

    def training_step(self, batch):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch):
        self.log("val_loss", self.layer(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

data = torch.utils.data.DataLoader(torch.ones(20, 4), batch_size=4)
trainer = Trainer(
    max_epochs=2, logger=JobLogger(), log_every_n_steps=2, accelerator="cpu", default_root_dir=sys.argv[1],
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), data, data)
print(trainer.log_dir, trainer.checkpoint_callback.best_model_path)
"""


@pytest.mark.huggingface
def test_the_values_of_self_log_become_events(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no Python with Lightning: tests/huggingface/setup makes .venv-huggingface")
    fifo = tmp_path / "events"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(SOURCES),
        "HERRINGBONE_EVENTS": str(fifo),
        "RANK": "0",
        "TRAINING_JOB_NAME": "digits-1",
    }
    done = subprocess.run([PYTHON, "-c", SCRIPT, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert done.stdout.split()[-1] == f"{tmp_path}/herringbone/digits-1/checkpoints/epoch=1-step=10.ckpt"
    events = [json.loads(line) for line in os.read(reader, 65_536).splitlines()]
    os.close(reader)
    steps = {name: [event["step"] for event in events if event["name"] == name] for name in ("loss", "val_loss")}
    assert steps == {"loss": [1, 3, 5, 7, 9], "val_loss": [4, 9]}
    assert {(event["kind"], event["source"], event["rank"]) for event in events} == {("metrics", "lightning", 0)}
    losses = [value for event in events if event["name"] == "loss" for value in event["values"]]
    assert losses == sorted(losses, reverse=True)
