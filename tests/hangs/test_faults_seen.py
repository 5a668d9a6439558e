"""One job whose rank 1 gets a wrong weight, and whose loss becomes no number: both are named, the last one ends it."""

import pytest

from herringbone import PyTorch

SCRIPT = """
import time, torch
import torch.distributed as dist
from herringbone_contract.events.script import log_metrics

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.Adam(model.parameters())
for step in range(10_000):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    optimizer.step()
    if step == 6 and dist.get_rank() == 1:
        with torch.no_grad():
            model.module.weight[0, 0] += 0.01
    log_metrics({"train/loss": loss if step < 30 else loss * float("nan")}, step=step)
    time.sleep(0.1)
"""


@pytest.mark.e2e
def test_a_wrong_replica_and_a_wrong_loss_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text(SCRIPT)
    job = PyTorch(
        str(tmp_path / "train.py"),
        instance_type="local_process",
        instance_count=3,
        distribution={"torch_distributed": {"enabled": True}},
        check_replicas_every=5,
        fault_policies={"nan_loss": "stop"},
    ).fit(logs=None)
    assert job.status == "Stopped"
    [replica] = job.logs(host="algo-1", pattern="^replica_mismatch: ")
    assert "the parameters of rank 1 have other bits than those of ranks 0, 2 after step 10" in replica.text
    [loss] = job.logs(host="algo-1", pattern="^nan_loss: ")
    assert "train/loss is nan at step 30, after " in loss.text
    assert {event["fault"] for event in job.events() if event["kind"] == "fault"} == {"replica_mismatch", "nan_loss"}
