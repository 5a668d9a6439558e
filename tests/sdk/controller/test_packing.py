"""Packing can be ended, leaves nothing half-written, and says how far it is."""

import os

import pytest
from tests.waiting import wait_until

from herringbone import Estimator, TrainingJob
from herringbone.controller.artifacts import HostFolder, pack
from herringbone.controller.attempt_end import PackingStoppedError, PackingWatch

# A file of 1 TiB that takes no room on the disk, and hours to pack.
LEAVES_A_HUGE_MODEL = (
    "import os\nwith open(os.environ['SM_MODEL_DIR'] + '/weights', 'wb') as file:\n    file.truncate(1 << 40)\n"
)


@pytest.mark.parametrize("second", ["stop", "kill"])
def test_a_first_stop_leaves_packing_alone_and_a_second_one_ends_it(script, backend, home, second):
    """Packing went on to its end, whatever the user asked for."""
    script(LEAVES_A_HUGE_MODEL)
    job = TrainingJob.submit(Estimator("train.py", instance_type="local_process").plan(job_name="a"), backend)
    wait_until(lambda: job.secondary_status == "Uploading")
    if second == "stop":
        job.stop()
        wait_until(lambda: job.status == "Stopping")
        assert job.secondary_status == "Uploading"
        job.stop()
    else:
        backend.kill("a")
    wait_until(lambda: backend.describe("a").done)
    assert (job.status, job.secondary_status, job.failure) == ("Stopped", "Stopped", None)
    folder = home.job("a").path
    assert list(folder.joinpath("output").rglob("*")) == []
    weights = home.job("a").host("algo-1") / "model" / "weights"
    (line,) = [line.text for line in job.logs() if "not packed" in line.text]
    assert str(weights.parent) in line
    assert "`herringbone repack a`" in line
    os.truncate(weights, 10)
    assert job.repack(print).name == "model.tar.gz"


def test_a_folder_that_a_killed_controller_left_half_packed_is_packed_again(tmp_path):
    """`repack` ended with FileExistsError where the output is not compressed."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a").write_text("1")
    (tmp_path / "out" / ".model.partial").mkdir(parents=True)
    (tmp_path / "out" / ".model.partial" / "half").touch()
    folder = HostFolder("algo-1", tmp_path, "model")
    packed = pack([folder], tmp_path / "out" / "model", compress=False, say=print)
    assert [path.name for path in packed.iterdir()] == ["a"]
    assert [path.name for path in packed.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("compress", [True, False])
def test_an_end_in_the_middle_leaves_nothing(tmp_path, compress):
    (tmp_path / "model").mkdir()
    with (tmp_path / "model" / "weights").open("wb") as file:
        file.truncate(1 << 40)
    watch = PackingWatch(is_ended=lambda: True, say=print, clock=iter([0.0, -1.0, -1.0, 1.0]).__next__)
    with pytest.raises(PackingStoppedError):
        pack([HostFolder("a", tmp_path, "model")], tmp_path / "out" / "m", compress=compress, say=print, step=watch)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_long_packing_says_how_far_it_is():
    times, lines = iter([0.0, 10.0, 31.0, 32.0, 62.0]), []
    watch = PackingWatch(is_ended=lambda: False, say=lines.append, clock=lambda: next(times))
    for _ in range(4):
        watch(1 << 30, 8 << 30)
    assert lines == ["2.0 of 8.0 GiB are packed", "4.0 of 8.0 GiB are packed"]


def test_results_follow_no_link_that_was_made_after_the_submission(script, backend, tmp_path):
    """A script that may write to the folder above would send its model to any folder of this machine."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "bucket").mkdir()
    script(
        "import os\n"
        f"os.symlink({str(tmp_path / 'elsewhere')!r}, {str(tmp_path / 'bucket' / 'a')!r})\n"
        "open(os.environ['SM_MODEL_DIR'] + '/weights', 'w').close()\n"
    )
    estimator = Estimator("train.py", instance_type="local_process", output_path=str(tmp_path / "bucket"))
    job = TrainingJob.submit(estimator.plan(job_name="a"), backend)
    wait_until(lambda: backend.describe("a").done)
    assert job.status == "Failed"
    assert "a link leads to" in str(job.failure.render())
    assert list((tmp_path / "elsewhere").iterdir()) == []
