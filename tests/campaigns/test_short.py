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


@pytest.mark.timeout(240)
def test_a_rank_that_saves_at_times_is_not_named_and_one_that_sleeps_in_each_step_is():
    command = [sys.executable, "-m", "tests.campaigns.stragglers", "--short", "--seconds=12"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER.parents[1])
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(240)
def test_a_search_whose_searcher_is_killed_has_the_result_of_an_undisturbed_one():
    command = [sys.executable, FOLDER / "tuner_kills.py", "--short"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(60)
def test_no_decoder_lets_a_foreign_error_out(tmp_path):
    decoders = all_decoders(tmp_path)
    assert campaign(decoders, inputs=25_000, seed=1)["escaped"] == {}


@pytest.mark.timeout(200)
def test_whatever_is_killed_no_gpu_is_given_twice_and_none_is_lost():
    command = [sys.executable, "-m", "tests.campaigns.gpu_line", "--jobs=6", "--submitters=2"]
    command += ["--kills=3", "--limit=120"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER.parents[1])
    results = json.loads(result.stdout.splitlines()[-1])
    assert results["wrong"] == [], results
    # The jobs may be over before the last kill.
    assert 1 <= sum(results["kills"].values()) <= 3


@pytest.mark.timeout(120)
def test_an_honest_user_is_answered_next_to_strangers_at_the_service_and_the_page(tmp_path):
    pytest.importorskip("uvicorn")
    from tests.campaigns.strangers import campaign as strangers

    figures = strangers(tmp_path, strangers=300, seconds=1.0)
    assert {name: each["median"] <= 1.0 for name, each in figures.items()} == dict.fromkeys(figures, True), figures


@pytest.mark.timeout(60)
def test_signatures_of_botocore_are_right_and_with_one_byte_changed_wrong():
    """Paths such as `//` were refused: for all services but S3 they are signed without empty parts."""
    pytest.importorskip("botocore")
    from tests.campaigns.signatures import campaign as signatures

    assert signatures(requests=200)["first"] == []


@pytest.mark.timeout(60)
def test_no_hostile_request_of_s3_or_the_page_is_an_error_of_ours(tmp_path, monkeypatch):
    pytest.importorskip("uvicorn")
    from herringbone.records.home import Home
    from tests.campaigns.hostile_requests import page_campaign, s3_campaign

    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (home := Home(tmp_path / "home")).make()
    (tmp_path / "buckets").mkdir()
    assert s3_campaign(tmp_path / "buckets", inputs=300)["failed"] == {}
    assert page_campaign(home, inputs=300)["failed"] == {}


@pytest.mark.timeout(240)
def test_a_training_that_is_killed_at_any_moment_sees_each_sample_once():
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "tests.campaigns.restarts", "--kills=3"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER.parents[1])
    assert json.loads(result.stdout.splitlines()[-1])["wrong"] == [], result.stdout + result.stderr


@pytest.mark.timeout(240)
def test_a_training_that_is_asked_to_go_saves_and_goes_on_with_equal_weights():
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "tests.campaigns.stops", "--loops=plain", "--stops=1", "--seed=3"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER.parents[1])
    row = json.loads(result.stdout.splitlines()[-1])["plain"]
    assert (row["stops"], row["wrong"]) == (1, []), result.stdout + result.stderr


@pytest.mark.timeout(300)
def test_a_job_whose_hosts_die_goes_on_from_memory_with_equal_weights():
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "tests.campaigns.memory_faults", "--short"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER.parents[1])
    assert result.returncode == 0, result.stdout + result.stderr
