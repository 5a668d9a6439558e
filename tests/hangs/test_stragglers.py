"""A rank that computes longer than the others is named, although all ranks wait for each other in every step."""

import re

import pytest

from herringbone import PyTorch

SCRIPT = """
import time, torch
import smdistributed.dataparallel.torch.torch_smddp
import torch.distributed as dist

dist.init_process_group("smddp")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(45):
    time.sleep(0.09 if dist.get_rank() == 1 else 0.02)
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.e2e
def test_the_slow_rank_of_a_synchronous_job_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text(SCRIPT)
    estimator = PyTorch(
        str(tmp_path / "train.py"),
        instance_type="local_process",
        instance_count=2,
        distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
    )
    job = estimator.fit(logs=None)
    steps = [event for event in job.events() if event["kind"] == "steps"]
    # Each waits for the other: their steps are as long, and their own times are not.
    assert {rank: event["own"][-1] > 0.06 for event in steps for rank in [event["rank"]]} == {0: False, 1: True}
    assert all(event["seconds"][-1] > 0.06 for event in steps)
    [line] = job.logs(host="algo-1", pattern="^straggler:")
    assert re.match(r"straggler: rank 1 \(algo-2\) needs 0\.[01]\d* s for a step, 1\.\d+ times the median", line.text)
