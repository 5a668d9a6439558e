"""The short forms of the campaigns; each script has a long one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.timeout(300)
def test_a_broken_job_ends_in_a_true_state_names_the_culprit_and_leaves_nothing():
    command = [sys.executable, FOLDER / "faults.py", "--short"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(result.stdout.splitlines()[-1])["failed"] == {}, result.stdout
