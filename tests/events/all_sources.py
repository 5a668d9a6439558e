"""The table of sources of metrics: one script that uses all of them, and what a job of it must show on every backend.

    source          the script                                                    a job shows
    log             prints a line that a metric definition matches                loss 0.5
    mllog           prints a line of MLPerf's log                                 accuracy 0.25
    script          calls `herringbone.log_metrics`                               score 1.5 and nan, with steps
    huggingface     posts what HF Trainer's progress callback posts               hf_loss 0.25, progress
    tensorboard     writes an event file of TensorBoard                           tb_loss 0.125
    keras           sends what `herringbone_parallel`'s callback sends            keras_loss 2
    lightning       sends what Lightning's logger sends                           lightning_loss 3
    smp, smddp      count a step, as their optimizers do                          steps

The script needs the standard library and Herringbone only. Tests of the entry program and of `herringbone_parallel` run
the frameworks themselves. Every backend's tests run one job of this script: `tests/sdk` on processes and in containers,
`tests/ssh`, `tests/slurm`, and `tests/sagemaker` with a supervisor's output in place of CloudWatch's.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from herringbone.views.top.monitor import JobReader
from tests.events.exports import check_export

if TYPE_CHECKING:
    from herringbone import TrainingJob

DEFINITIONS = [{"Name": "loss", "Regex": r"loss=([0-9.]+)"}]

SCRIPT = r"""
import json, os, struct, time, urllib.request
import herringbone
from herringbone_contract.events import emit
from herringbone_contract.events.steps import tick

print("loss=0.5")
print(':::MLLOG {"time_ms": 1, "event_type": "POINT_IN_TIME", "key": "accuracy", "value": 0.25}', flush=True)

herringbone.log_metrics({"score": 1.5}, step=10)
herringbone.log_metrics({"score": float("nan")}, step=20)
emit.metric("keras_loss", 2.0, 3, source="keras")
emit.metric("lightning_loss", 3.0, 4, source="lightning")

class Optimizer:
    pass

optimizer = Optimizer()
tick(optimizer)

def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

def scalar(tag, value, step):
    content = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(content)]) + content
    event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + bytes([step])
    event += b"\x2a" + bytes([len(summary)]) + summary
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc(length)) + event + struct.pack("<I", masked_crc(event))

with open(os.environ["SM_OUTPUT_DATA_DIR"] + f"/events.out.tfevents.{int(time.time())}.host", "wb") as file:
    file.write(scalar("tb_loss", 0.125, 7))

shown = [{"name": name, "value": value} for name, value in
         (("hf_loss", "0.25"), ("current_step", "10"), ("total_steps", "20"))]
status = {"progressPercentage": 50, "estimatedRemainingSeconds": 9, "metrics": shown}
token = open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read()
# The observer answers as soon as it runs.
request = urllib.request.Request(
    os.environ["KUBEFLOW_TRAINER_SERVER_URL"],
    json.dumps({"trainerStatus": status}).encode(),
    {"Authorization": "Bearer " + token},
)
urllib.request.urlopen(request, timeout=20).read()
time.sleep(0.5)
tick(optimizer)
"""

# (source, name, value, step, rank)
METRICS = {
    ("log", "loss", "0.5", None, 0),
    ("mllog", "accuracy", "0.25", None, 0),
    ("script", "score", "1.5", 10, 0),
    ("script", "score", "nan", 20, 0),
    ("huggingface", "hf_loss", "0.25", None, None),
    ("tensorboard", "tb_loss", "0.125", 7, None),
    ("keras", "keras_loss", "2.0", 3, 0),
    ("lightning", "lightning_loss", "3.0", 4, 0),
}


def shown_metrics(job: TrainingJob) -> set[tuple[Any, ...]]:
    """Return the metrics of a job as rows of METRICS."""
    return {(metric.source, metric.name, str(metric.value), metric.step, metric.rank) for metric in job.metrics()}


def check_all_sources(job: TrainingJob) -> None:
    """Raise `AssertionError` unless a completed job of SCRIPT shows every source."""
    assert job.status == "Completed", job.failure
    found = shown_metrics(job)
    assert found == METRICS, f"missing: {METRICS - found}, unexpected: {found - METRICS}"
    view = job.view()
    progress = job.progress()
    assert progress is not None
    assert (progress.done, progress.total, progress.eta) == (10.0, 20.0, 9.0)
    assert view.step_counts == {0: 2}
    # Each once, whoever writes them on this backend.
    states = [one.state for one in view.states if one.state not in ("Pending", "Starting", "Downloading", "Uploading")]
    assert states == ["Training", "Completed"], states
    texts = [line.text for line in job.logs()]
    assert "loss=0.5" in texts
    assert not [text for text in texts if "\x1e" in text or '"kind"' in text]
    check_export(job)
    check_top(job)


def check_top(job: TrainingJob) -> None:
    """Raise `AssertionError` unless `herringbone top` and a notebook show the job as its sources do."""
    backend = job._backend
    reader = JobReader(backend.describe(job.name), backend_named=lambda _: backend)
    with closing(reader):
        row = reader.look()
    assert (row.state, row.done, row.total, row.fraction, row.trouble) == ("Completed", 10.0, 20.0, 0.5, "")
    assert (row.metric, row.value) == ("loss", 0.5)
    assert row.last_line != ""
    assert reader.detail is not None
    assert {source for _, _, _, _, source in reader.detail.metrics[1:]} == {source for source, *_ in METRICS}
    assert "hf_loss" in job.metrics()._repr_html_()
