"""A job whose disk becomes full: its end and the cause are told, and everything stays readable."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from herringbone import Estimator
from herringbone.cli.__main__ import main
from herringbone.records.home import Home
from herringbone.records.index import JobIndex

FILLS_ITS_LOG = (
    "import os\nopen(os.environ['SM_MODEL_DIR'] + '/w', 'w')\nfor number in range(60_000): print(number, 'x' * 80)\n"
)
FILLS_ITS_MODEL = "import os\nopen(os.environ['SM_MODEL_DIR'] + '/w', 'wb').write(bytes(9 << 20))\n"


@pytest.fixture
def small_disk(home: Home):
    """The jobs' folder on a disk of 3 MB."""
    home.path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs", str(home.path)]
    if os.getuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user cannot mount a tmpfs")
    try:
        yield home
    finally:
        # Lazily: a controller whose job is over may still wait for the index.
        subprocess.run(["umount", "--lazy", str(home.path)], check=True)


@pytest.mark.parametrize(
    ("code", "cause", "kept"),
    [
        (FILLS_ITS_LOG, "results could not be packed into .*: No space left on device; nothing is lost", "logs"),
        (FILLS_ITS_MODEL, r"^rank 0 on algo-1: OSError: \[Errno 28\] No space left on device \(the disk of", "hosts"),
    ],
)
def test_the_end_and_the_cause_are_told(
    script, small_disk: Home, code: str, cause: str, kept: str, capsys, tmp_path
) -> None:
    script(code)
    job = Estimator("train.py", instance_type="local_process").fit(job_name="a", wait=False)
    job.wait(timeout=30)
    failure = job.failure
    assert failure is not None
    capsys.readouterr()
    assert main(["ls"]) == 0
    assert "Failed" in capsys.readouterr().out
    assert main(["logs", "a"]) == 0
    # There is room again, and the row is written by the controller or by the next look.
    for file in small_disk.job("a").path.joinpath(kept).rglob("*"):
        if file.is_file():
            os.truncate(file, 0)
    assert job.describe()["TrainingJobStatus"] == "Failed"
    assert JobIndex(small_disk.index).get("a").failure is not None
    assert re.search(cause, failure.render())
    if kept == "logs":
        (small_disk.job("a").host("algo-1") / "model" / "w").write_text("1")
        assert main(["repack", "a"]) == 0
        assert main(["download", "a", str(tmp_path / "model")]) == 0
        assert (tmp_path / "model" / "w").read_text() == "1"
        assert main(["repack", "a"]) == 2
        assert "has its model already" in capsys.readouterr().err


def test_rm_makes_room_on_a_full_disk(script, small_disk: Home, capsys) -> None:
    script(FILLS_ITS_MODEL)
    Estimator("train.py", instance_type="local_process").fit(job_name="a", wait=False).wait(timeout=30)
    assert main(["rm", "a"]) == 0
    assert (JobIndex(small_disk.index).names(), os.listdir(small_disk.path / "jobs")) == ([], [])


# torch's error for a full disk is "[enforce fail at inline_container.cc:671]", which does not name the disk.
FILLS_ITS_CHECKPOINTS = """\
import os
try:
    open(os.environ['SM_CHECKPOINT_DIR'] + '/last.pt', 'wb').write(bytes(9 << 20))
except OSError:
    raise RuntimeError('[enforce fail at inline_container.cc:671]') from None
"""


def test_a_checkpoint_that_does_not_fit_names_the_full_disk(script, small_disk: Home, monkeypatch, tmp_path, capfd):
    checkpoints = small_disk.path
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "another"))
    script(FILLS_ITS_CHECKPOINTS)
    options = {"instance_type": "local_process", "checkpoint_s3_uri": f"file://{checkpoints}"}
    job = Estimator("train.py", **options).fit(job_name="a", wait=False)
    # Before the job has started, too.
    assert f"only 3.1 MB are free in {checkpoints}, where the job will write" in capfd.readouterr().err
    job.wait(timeout=30)
    message = job.failure.message
    assert message.startswith("[enforce fail at inline_container.cc:671] (the disk of ")
    assert "/checkpoints is full: 0 MB are free; remove files there" in message
