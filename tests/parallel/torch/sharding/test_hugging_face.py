"""Models of transformers share sequences: cells of the equality matrix in the Python that has transformers.

The campaign `tests.campaigns.sharding --transformers` has all cells.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
# scripts/nightly names Pythons with other releases.
PYTHON = Path(os.environ.get("TEST_HUGGINGFACE_PYTHON", ROOT / ".venv-huggingface" / "bin" / "python"))
SOURCES = [str(ROOT / folder) for folder in ("", "contract", "sdk", "entrypoints", "parallel")]
EXPECTED = {"bart": "equal", "qwen2, grouped": "equal", "t5": "refused"}


@pytest.mark.huggingface
@pytest.mark.timeout(300)
def test_sequences_of_models_of_transformers_are_shared_or_refused() -> None:
    if not PYTHON.exists():
        pytest.skip("there is no Python with transformers: tests/huggingface/setup makes .venv-huggingface")
    command = [PYTHON, "-m", "tests.campaigns.sharding", "--transformers", "--fp64", "--layout", "context 2"]
    for model in EXPECTED:
        command += ["--model", model]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3_000:]
    for model, verdict in EXPECTED.items():
        [line] = [line for line in done.stdout.splitlines() if line[21:].startswith(model)]
        assert line[47:].startswith(verdict), line
