"""An unchanged script of Hugging Face's Trainer reports its progress, in the Python of `tests/huggingface/setup`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import herringbone
import herringbone_contract
import herringbone_entry

# The sources of Herringbone, without the other packages of this Python.
SOURCES = [str(Path(package.__file__).parents[1]) for package in (herringbone, herringbone_entry, herringbone_contract)]
PYTHON = Path(__file__).parents[2] / ".venv-huggingface" / "bin" / "python"

CLIENT = """
import json, sys
from herringbone import PyTorch

settings = {"instance_type": "local_process", "instance_count": 2, "distribution": "torch_distributed"}
job = PyTorch(entry_point="train.py", source_dir=sys.argv[1], **settings).fit(logs=False)
print(json.dumps([job.status, [event for event in job.events() if event["kind"] in ("progress", "metrics")]]))
"""
SCRIPT = """
import os
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

config = GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
rows = [{"input_ids": torch.full((8,), number), "labels": torch.full((8,), number)} for number in range(32)]
arguments = TrainingArguments(
    os.environ["SM_MODEL_DIR"], max_steps=20, per_device_train_batch_size=4, logging_steps=10, use_cpu=True
)
Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows).train()
"""


@pytest.mark.e2e
@pytest.mark.huggingface
def test_an_unchanged_trainer_reports_progress_and_metrics(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no Python with transformers: tests/huggingface/setup makes .venv-huggingface")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    environment = {
        **os.environ,
        "HERRINGBONE_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join(SOURCES),
        # Nobody listens there, and the posts must not go there.
        "http_proxy": "http://127.0.0.2:9",
    }
    done = subprocess.run([PYTHON, "-c", CLIENT, tmp_path / "src"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3_000:]
    status, events = json.loads(done.stdout.splitlines()[-1])
    assert status == "Completed"
    shown = [(event["done"], event["total"], event["unit"]) for event in events if event["kind"] == "progress"]
    assert shown[0] in ((0, 20, "step"), (20, 20, "step"))
    assert shown[-1] == (20, 20, "step")
    metrics = {event["name"]: event for event in events if event["kind"] == "metrics"}
    assert {"loss", "grad_norm", "learning_rate", "epoch", "train_loss"} <= set(metrics)
    assert (metrics["loss"]["source"], metrics["loss"]["host"], metrics["loss"]["step"]) == (
        "huggingface",
        "algo-1",
        20,
    )
    [loss] = metrics["loss"]["values"]
    assert 2 < loss < 4
    # The token is in no file of the job.
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"Bearer" in path.read_bytes()]
