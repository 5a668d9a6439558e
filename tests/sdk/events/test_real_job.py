"""The events of a job of two ranks: they are next to the log, and not in it."""

from __future__ import annotations

import time

from herringbone import Estimator
from herringbone.events.view import JobView
from herringbone.records.home import Home

SCRIPT = """
import os, time
from herringbone_contract.events import emit
rank = int(os.environ["RANK"])
print("begins")
checkpoints = os.environ["SM_CHECKPOINT_DIR"]
for step in range(24):
    emit.metric("loss", 1 / (step + 1), step)
    time.sleep(0.1)
if rank == 0:
    open(f"{checkpoints}/last.pt", "wb").write(b"123")
emit.emit("progress", done=24, total=24, unit="step", eta=0)
print("ends")
"""


def test_events_are_next_to_the_log_and_not_in_it(home: Home, script) -> None:
    script(SCRIPT)
    ranks = {"torch_distributed": {"enabled": True}}
    job = Estimator("train.py", instance_type="local_process", instance_count=2, distribution=ranks).fit()
    folder = home.job(job.name)
    texts = [line.text for line in job.logs()]
    assert texts.count("begins") == texts.count("ends") == 2
    assert b"\x1e" not in b"".join(folder.log(host).read_bytes() for host in ("algo-1", "algo-2"))
    assert not [text for text in texts if '"kind"' in text]
    events = list(job.events())
    for host, rank in (("algo-1", 0), ("algo-2", 1)):
        own = [event for event in events if event.get("host") == host]
        metrics = [event for event in own if event["kind"] == "metrics" and event["name"] == "loss"]
        # All values, the last one too, in batches of about a second, and from this host's rank alone.
        assert sum(len(event["values"]) for event in metrics) == 24
        assert {event["rank"] for event in metrics} == {rank}
        samples = [event for event in own if event["kind"] == "sample"]
        assert samples
        assert all(1 << 20 < sample["memory"] < sample["memory_total"] for sample in samples)
        assert [event["done"] for event in own if event["kind"] == "progress"] == [24]
    checkpoints = [event for event in events if event["kind"] == "checkpoint" and event["path"] == "last.pt"]
    assert [event["bytes"] for event in checkpoints][:1] == [3]
    assert JobView().take_all(events).last("loss") == 1 / 24


REDRAWS = """
import os, time
for number, value in enumerate((0.5, 0.25)):
    print(f"epoch {number} loss={value}", end="\\r")
    while not os.path.exists(f"{GO}-{number}"):
        time.sleep(0.01)
print()
"""


def test_values_of_a_redrawn_line_are_metrics_while_the_job_runs(home: Home, script, tmp_path) -> None:
    go = tmp_path / "go"
    script(f"GO = {str(go)!r}\n{REDRAWS}")
    definitions = [{"Name": "loss", "Regex": r"loss=(\S+)"}]
    estimator = Estimator(
        "train.py", instance_type="local_process", instance_count=1, metric_definitions=definitions, max_run=60
    )
    job = estimator.fit(wait=False, logs=False)
    for number, values in enumerate(([0.5], [0.5, 0.25])):
        while [metric.value for metric in job.metrics()] != values:
            assert job.status == "InProgress"
            time.sleep(0.1)
        (tmp_path / f"go-{number}").touch()
    assert job.wait().status == "Completed"
    # The line that ends the bar has no third value.
    assert [metric.value for metric in job.metrics()] == [0.5, 0.25]
    assert [line.text.rstrip() for line in job.logs()] == ["epoch 1 loss=0.25"]
