"""Jobs whose number of hosts changes while they run, with real processes."""

import pytest
from tests.waiting import wait_until

from herringbone.controller.controller import Controller
from herringbone.controller.hosts import Site
from herringbone.controller.retry import Attempt
from herringbone_contract.errors import OptionError, RequestError, UnsupportedError

from .test_controller import submit, texts

# Counts steps until a file appears, and saves when it is asked to go.
COUNTS = """
import json, os, pathlib, signal, sys, time
base = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"])
host = os.environ["SM_CURRENT_HOST"]
saved = base / "checkpoints" / "steps"
def leave(*_):
    if host == "algo-1": saved.write_text(str(step))
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
step = int(saved.read_text()) if saved.exists() else 0
hosts = json.loads((base / "input/config/resourceconfig.json").read_text())["hosts"]
print(f"{len(hosts)} hosts from step {step}", flush=True)
while not (base / "checkpoints" / "end").exists():
    step += 1
    time.sleep(0.01)
"""


def num_begun(job):
    return sum(" from step " in text for text in texts(job))


def test_a_job_goes_on_with_other_numbers_of_hosts(script, backend, home, running):
    script(COUNTS)
    job = submit(backend, job_name="scaled", instance_count=3, min_instance_count=1)
    wait_until(lambda: num_begun(job) == 3)
    for hosts, before, begun in ((1, 3, 4), (3, 1, 7), (2, 3, 9)):
        assert job.scale(hosts) == before
        wait_until(lambda begun=begun: num_begun(job) == begun)
    starts = [text for text in texts(job, host="algo-1") if " from step " in text]
    assert [text[0] for text in starts] == ["3", "1", "3", "2"]
    steps = [int(text.split()[-1]) for text in starts]
    assert steps[0] == 0
    assert steps == sorted(steps)
    assert steps[1] > 0
    with pytest.raises(RequestError, match="the job has 2 hosts already"):
        job.scale(2)
    with pytest.raises(RequestError, match="4 hosts are more than instance_count, 3"):
        job.scale(4)
    (home.job("scaled").host("algo-1") / "checkpoints" / "end").touch()
    assert job.wait(timeout=20).status == "Completed"
    attempts = job.describe()["Attempts"]
    assert [attempt["NextHosts"] for attempt in attempts] == [1, 3, 2]
    assert attempts[0]["FailureReason"] == "3 -> 1 host: asked by `herringbone scale`"
    with pytest.raises(RequestError, match="is Completed"):
        job.scale(3)
    assert running() == []


def test_a_stop_while_a_job_changes_stops_it(script, backend):
    # It takes its time to save.
    script(COUNTS.replace("sys.exit(0)", "time.sleep(1); sys.exit(0)"))
    job = submit(backend, instance_count=2, min_instance_count=1)
    wait_until(lambda: len(texts(job)) == 2)
    job.scale(1)
    with pytest.raises(RequestError, match="on its way to 1 host"):
        job.scale(1)
    job.stop()
    assert job.wait(timeout=20).status == "Stopped"


def test_a_script_that_does_not_go_is_killed_and_the_job_goes_on():
    controller = Controller.__new__(Controller)
    controller._site, controller._hosts, controller._ordered = Site(), [], set()
    controller._killed = controller._stopped = controller._limit = False
    controller._site.planned = Attempt(1, {}, next_hosts=1)
    controller._kill()
    assert controller._stopped is False
    # A second Ctrl-C forgets the plan first.
    controller._site.planned = None
    controller._kill()
    assert controller._stopped is True


def test_a_job_without_the_option_keeps_its_hosts(script, backend):
    script(COUNTS)
    job = submit(backend, instance_count=2)
    wait_until(lambda: len(texts(job)) == 2)
    with pytest.raises(RequestError, match="keeps its 2 hosts: it has no min_instance_count"):
        job.scale(1)
    job.stop()
    job.wait(timeout=20)


def test_what_depends_on_the_number_of_hosts_is_refused_at_plan(script, backend, tmp_path):
    from herringbone.plan.inputs import TrainingInput

    script("")
    (tmp_path / "data").mkdir()
    for name in "ab":
        (tmp_path / "data" / name).touch()
    shares = TrainingInput(str(tmp_path / "data"), distribution="ShardedByS3Key")
    with pytest.raises(UnsupportedError, match="min_instance_count: channel 'training' is divided"):
        submit(backend, inputs=shares, instance_count=2, min_instance_count=1)
    with pytest.raises(OptionError, match="keep_global_batch: the job keeps its hosts"):
        submit(backend, instance_count=2, keep_global_batch=True)
