"""A bad batch under `roll_back`: the job completes without it, and without a bit of difference before it."""

import json

import pytest

from herringbone import PyTorch

# Rank 1 has a bad batch at step 13, and the job's rank 1 alone knows it.
SCRIPT = """
import json, sys, time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from herringbone import log_metrics
from herringbone_parallel.torch.position.api import Training

dist.init_process_group("gloo")
rank, bad = dist.get_rank(), int(sys.argv[sys.argv.index("--bad") + 1])
torch.manual_seed(0)
inputs = torch.rand(96, 4)
data = TensorDataset(torch.arange(96), inputs, inputs.sum(1, keepdim=True))
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=3, sampler=sampler)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
training = Training(model=model, optimizer=optimizer, loader=loader)
print("resumed", training.resume(), training.step)
for epoch in range(training.epoch, 2):
    sampler.set_epoch(epoch)
    for numbers, batch, targets in loader:
        step = training.step
        optimizer.zero_grad()
        loss = (model(batch) - targets).square().mean()
        if rank == 1 and (epoch, step) == (0, bad):
            loss = loss * float("nan")
        loss.backward()
        optimizer.step()
        print("used", json.dumps([step, numbers.tolist(), loss.item().hex()]))
        log_metrics({"train/loss": loss.detach()}, step=step)
        if training.step % 5 == 0:
            training.save()
        if bad >= 0:
            time.sleep(0.1)
print("weights", [value.hex() for value in model.module.weight.flatten().tolist()])
"""


def run(bad, **options):
    return PyTorch(
        "train.py",
        instance_type="local_process",
        instance_count=2,
        distribution={"torch_distributed": {"enabled": True}},
        hyperparameters={"bad": bad},
        environment={"OMP_NUM_THREADS": "1"},
        **options,
    ).fit(logs=False, wait=False)


def used(job, rank):
    """Return what a rank has used: [step, samples, loss] in the order of time."""
    lines = job.logs(host=f"algo-{rank + 1}", pattern="^used ")
    return [json.loads(line.text.removeprefix("used ")) for line in lines]


@pytest.mark.e2e
@pytest.mark.timeout(170)
def test_the_data_between_the_checkpoint_and_the_fault_is_not_used_again(tmp_path, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    whole = run(-1)
    job = run(13, fault_policies={"nan_loss": "roll_back"}, max_retry_attempts=2)
    assert (whole.wait().status, job.wait().status) == ("Completed", "Completed")
    # Rank 0 sends its wrong loss one step later, and often earlier: the earliest step counts.
    [told] = job.logs(host="algo-1", pattern="^attempt 2 of 3")
    assert "nan_loss: rank 1 (algo-2): train/loss is nan at step 13" in told.text
    assert "newest checkpoint: step-10" in told.text
    [passed] = job.logs(host="algo-1", pattern="roll_back: the data of")
    assert "the data of 4 steps is passed over, from step 10 to 14" in passed.text
    for rank in (0, 1):
        undisturbed, found = used(whole, rank), used(job, rank)
        # Equal bits until the fault; then the samples behind it, so that none but those of steps 10 to 13 is left out.
        assert found[:13] == undisturbed[:13]
        assert [one[:2] for one in found[-18:]] == [one[:2] for one in undisturbed[14:]]
        assert "nan" not in [loss for _, _, loss in found[-18:]]
    # Nothing is lost: what was saved after the fault is set aside.
    [aside] = [line.text for line in job.logs(pattern="^roll_back: set aside")]
    names = aside.rpartition(": ")[2].split(", ")
    assert names[0] == "step-15"
    kept = list((tmp_path / "home").glob("jobs/*/hosts/algo-1/ml/checkpoints/.step-15.1.set-aside/manifest.json"))
    assert len(kept) == 1
