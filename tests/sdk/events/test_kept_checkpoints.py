"""`keep_checkpoints` in real jobs: what is left at the end, and that the log and the events name what went."""

from __future__ import annotations

from pathlib import Path

from herringbone import Estimator
from herringbone.records.home import Home

# Saves ten checkpoints; in its first attempt it kills its own host after the sixth. The third is the best.
SCRIPT = """
import os, pathlib, signal, time, zipfile
from herringbone_contract.events import emit
folder, host = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"]), os.environ["SM_CURRENT_HOST"]
first_step = max(int(path.stem[5:]) for path in folder.glob("step-*.pt")) + 1
tried = folder / f"tried-{host}"
first = not tried.exists()
tried.touch()
# The observer begins a second after the ranks.
time.sleep(1.5)
if host == "algo-1":
    for step in range(first_step, 11):
        emit.metric("eval/loss", abs(step - 3), step)
        with zipfile.ZipFile(folder / ".new", "w") as archive:
            archive.writestr("data.pkl", b"x")
        (folder / ".new").rename(folder / f"step-{step:02d}.pt")
        if step == 6 and first:
            # Until the observer has removed the first one, and said so.
            while (folder / "step-01.pt").exists():
                time.sleep(0.1)
            time.sleep(1.5)
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
"""


def test_the_newest_and_the_best_are_left_over_a_killed_host(home: Home, script, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "step-00.pt").write_bytes(b"of another job")
    script(SCRIPT)
    job = Estimator(
        "train.py",
        instance_type="local_process",
        instance_count=2,
        distribution={"torch_distributed": {"enabled": True}},
        checkpoint_s3_uri=str(own),
        keep_checkpoints={"last": 2, "best": 1, "metric": "eval/loss", "objective_type": "Minimize"},
        max_retry_attempts=1,
    ).fit()
    assert len(job.describe()["Attempts"]) == 1
    left = ["step-00.pt", "step-03.pt", "step-09.pt", "step-10.pt"]
    assert sorted(path.name for path in own.glob("*.pt")) == left
    removed = {event["path"] for event in job.events() if event["kind"] == "removed"}
    assert removed == {f"step-{step:02d}.pt" for step in (1, 2, 4, 5, 6, 7, 8)}
    texts = [line.text for line in job.logs()]
    assert "checkpoint step-01.pt is removed, because step-06.pt is whole" in texts
    assert "checkpoint step-08.pt is removed, because step-10.pt is whole" in texts
