"""Restarts of jobs of this machine, with real processes and the stand-in supervisor."""

import json
import tarfile

import pytest
from tests.waiting import wait_until

from .test_controller import submit, texts

# Trains ten steps and saves each; in the first attempt, `FAULT` is executed after the sixth.
TRAINS = """
import json, os, pathlib, signal, time
base = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"])
# The hosts have one folder.
saved = base / "checkpoints" / os.environ["SM_CURRENT_HOST"]
tried = saved.with_suffix(".tried")
step, weight = json.loads(saved.read_text()) if saved.exists() else (0, 1.0)
print("from step", step, flush=True)
first = not tried.exists()
tried.touch()
while step < 10:
    weight, step = weight * 0.9 + step, step + 1
    saved.with_suffix(".new").write_text(json.dumps([step, weight]))
    saved.with_suffix(".new").replace(saved)
    if step == 6 and first and os.environ["SM_CURRENT_HOST"] == "algo-1":
        (base / "model" / "of-a-broken-attempt").touch()
        exec(os.environ["FAULT"])
pathlib.Path(os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"]).write_text(json.dumps(weight))
"""
LOSE_HOST = "os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"


def train(script, backend, fault, **options):
    script(TRAINS)
    return submit(backend, environment={"FAULT": fault}, **options)


def weights(job):
    with tarfile.open(job.model_data.removeprefix("file://")) as archive:
        return {name: json.load(archive.extractfile(name)) for name in archive.getnames()}


def test_after_a_lost_host_the_next_attempt_reaches_the_same_weights(script, backend, running):
    leave_no_trace = "(base / 'model' / 'of-a-broken-attempt').unlink()"
    undisturbed = train(script, backend, leave_no_trace, job_name="undisturbed", instance_count=2).wait()
    job = train(script, backend, LOSE_HOST, job_name="disturbed", instance_count=2, max_retry_attempts=3).wait()
    assert (job.status, job.secondary_status, job.failure) == ("Completed", "Completed", None)
    assert weights(job) == weights(undisturbed)
    # Lines that the killed supervisor had not written yet are lost with it.
    announcement, first = texts(job, host="algo-1")[-2:]
    assert announcement.startswith(
        "attempt 2 of 4: algo-1 was lost (exit code 137, killed by SIGKILL); restarting; newest"
    )
    assert first == "from step 6"
    described = job.describe()
    assert [state["Status"] for state in described["SecondaryStatusTransitions"]] == ["Restarting"]
    assert [attempt["Attempt"] for attempt in described["Attempts"]] == [1]
    assert running() == []


def test_a_script_that_fails_is_not_retried_unless_a_policy_matches_its_log(script, backend):
    fault = "raise SystemExit('link 7 is flaky')"
    assert train(script, backend, fault, max_retry_attempts=3).wait().status == "Failed"
    job = train(script, backend, fault, max_retry_attempts=3, log_policies={"link . is flaky": "restart"}).wait()
    assert job.status == "Completed"
    assert any("restart by the log of algo-1: '[algo-1:0] link 7 is flaky'" in line for line in texts(job))


def test_the_last_attempts_failure_is_the_jobs(script, backend):
    script("import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)")
    job = submit(backend, max_retry_attempts=1).wait()
    assert job.failure.render().startswith("algo-1: exit code 137")
    assert texts(job)[-1] == "attempt 2 of 2 has failed, too"


def test_a_job_that_saves_nothing_new_in_three_attempts_ends(script, backend):
    script(
        "import os, pathlib, signal, time\n"
        "saved = pathlib.Path(os.environ['SAGEMAKER_BASE_DIR'], 'checkpoints', 'step-1.pt')\n"
        "if not saved.exists(): saved.touch()\n"
        "os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"
    )
    job = submit(backend, max_retry_attempts=9).wait()
    assert (job.status, len(job.describe()["Attempts"])) == ("Failed", 3)
    assert "no new step since checkpoint step-1.pt in 3 attempts" in job.failure.message
    assert texts(job)[-1].startswith("the job cannot be restarted: no new step since checkpoint step-1.pt")


def test_a_bad_gpu_ends_a_job_that_has_no_other_machine(script, backend):
    script("raise SystemExit('CUDA error: uncorrectable ECC error encountered')")
    job = submit(backend, max_retry_attempts=3).wait()
    assert job.status == "Failed"
    assert "Attempts" not in job.describe()


def test_a_stop_in_the_second_attempt_is_a_stop(script, backend):
    script(
        "import os, pathlib, signal, time\n"
        "tried = pathlib.Path(os.environ['SAGEMAKER_BASE_DIR'], 'checkpoints', 'tried')\n"
        "if tried.exists(): print('again', flush=True)\n"
        "else: tried.touch(); os.kill(os.getppid(), signal.SIGKILL)\n"
        "time.sleep(60)"
    )
    job = submit(backend, max_retry_attempts=3)
    wait_until(lambda: "again" in texts(job))
    job.stop()
    assert job.wait(timeout=10).status == "Stopped"


@pytest.mark.parametrize("option", ["log_policies", "fault_policies"])
def test_restart_options_without_retries_are_refused(script, backend, option):
    script("")
    options = {"log_policies": {"flaky": "restart"}, "fault_policies": {"hang": "restart"}}
    message = f"{option}: controls how a job restarts, and this job never restarts: give max_retry"
    with pytest.raises(Exception, match=message):
        submit(backend, **{option: options[option]})
