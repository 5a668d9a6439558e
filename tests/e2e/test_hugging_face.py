"""An unchanged script of Hugging Face's Trainer sends all that it logs, in the Python of `tests/huggingface/setup`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import herringbone
import herringbone_contract
import herringbone_entry

# The sources of Herringbone, without the other packages of this Python.
SOURCES = [str(Path(package.__file__).parents[1]) for package in (herringbone, herringbone_entry, herringbone_contract)]
PYTHON = Path(__file__).parents[2] / ".venv-huggingface" / "bin" / "python"

CLIENT = """
import json, sys
from pathlib import Path
from herringbone import PyTorch

settings = {"instance_type": "local_process", "instance_count": 2, "distribution": "torch_distributed"}
job = PyTorch(entry_point="train.py", source_dir=sys.argv[1], **settings).fit(logs=False)
job.download_model(Path(sys.argv[1]) / "model")
values = [[metric.name, metric.step, metric.value, metric.rank, metric.source] for metric in job.metrics()]
progress = [[event["done"], event["total"], event["unit"]] for event in job.events() if event["kind"] == "progress"]
print(json.dumps([job.status, values, progress]))
"""
SCRIPT = """
import os
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

config = GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
rows = [{"input_ids": torch.full((8,), number), "labels": torch.full((8,), number)} for number in range(32)]
arguments = TrainingArguments(
    os.environ["SM_MODEL_DIR"],
    max_steps=200,
    per_device_train_batch_size=4,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=90,
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(
    GPT2LMHeadModel(config), arguments, train_dataset=rows, eval_dataset={"one": rows[:8], "two": rows[8:16]}
)
trainer.train()
trainer.log({"mine": 0.1 + 0.2, "step": 7, "text": "no number", "last": float("nan")})
trainer.evaluate()
trainer.evaluate(rows, metric_key_prefix="final")
trainer.predict(rows[:8])
trainer.save_state()
"""


@pytest.mark.e2e
@pytest.mark.huggingface
def test_an_unchanged_trainer_sends_every_value_that_it_logs(tmp_path: Path) -> None:
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
    status, values, progress = json.loads(done.stdout.splitlines()[-1])
    assert status == "Completed"
    assert progress[0] in ([0, 200, "step"], [200, 200, "step"])
    assert progress[-1] == [200, 200, "step"]
    state = json.loads((tmp_path / "src" / "model" / "trainer_state.json").read_text())
    expected: dict[str, list[Any]] = {}
    for entry in state["log_history"]:
        for name, value in entry.items():
            if name not in ("step", "text"):
                expected.setdefault(name, []).append([entry["step"], str(float(value))])
    assert len(expected["loss"]) == 200
    assert {"eval_one_loss", "eval_two_loss", "final_loss", "mine", "last"} <= set(expected)
    found: dict[str, list[Any]] = {}
    for name, step, value, rank, source in values:
        assert (rank, source) == (0, "huggingface")
        found.setdefault(name, []).append([step, str(float(value))])
    assert found.keys() == expected.keys()
    for name, series in expected.items():
        assert found[name] == series, name
    # The token is in no file of the job.
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"Bearer" in path.read_bytes()]
