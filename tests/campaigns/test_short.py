"""The short forms of the campaigns; each script has a long one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.decoder_table import all_decoders
from tests.campaigns.decoders import campaign

FOLDER = Path(__file__).parent


@pytest.mark.timeout(300)
def test_a_broken_job_ends_in_a_true_state_names_the_culprit_and_leaves_nothing():
    command = [sys.executable, FOLDER / "faults.py", "--short"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(result.stdout.splitlines()[-1])["failed"] == {}, result.stdout


@pytest.mark.timeout(60)
def test_no_decoder_lets_a_foreign_error_out(tmp_path):
    decoders = all_decoders(tmp_path)
    assert campaign(decoders, inputs=25_000, seed=1)["escaped"] == {}
