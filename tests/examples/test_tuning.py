"""The example of a search: Hyperband continues the best trials from their checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tuning" / "submit.py"


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_the_best_configuration_trains_on(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    words = ["--max-jobs", "3", "--epochs", "3", "--parallel", "2", "--seed", "2", "--json"]
    environment = {**os.environ, "HERRINGBONE_HOME": str(tmp_path / "home")}
    run = subprocess.run([sys.executable, EXAMPLE, *words], env=environment, stdout=subprocess.PIPE, check=True)
    result = json.loads(run.stdout.splitlines()[-1])
    # Three configurations of one epoch, and two more epochs for the best one.
    assert (result["jobs"], result["epochs"]) == (4, 5)
    assert result["job"].endswith("-004")
    assert result["accuracy"] > 0.2
