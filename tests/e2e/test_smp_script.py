"""A script for SMP v1 through fit(): its losses equal those of one process, and its checkpoints load."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from herringbone import PyTorch
from tests.e2e.counted import steps_by_rank

NET = """
import torch
from torch import nn
from torch.nn import functional as F


class Net1(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 1)
        self.conv2 = nn.Conv2d(4, 8, 3, 1)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return torch.flatten(F.max_pool2d(x, 2), 1)


class Net2(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(32, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x):
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), 1)


class GroupedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = Net1()
        self.net2 = Net2()

    def forward(self, x):
        return self.net2(self.net1(x))


def dataset():
    generator = torch.Generator().manual_seed(7)
    return torch.randn(64, 1, 8, 8, generator=generator), torch.randint(0, 10, (64,), generator=generator)
"""

SCRIPT = """
import argparse
import os

import smdistributed.modelparallel.torch as smp
import torch
from net import GroupedNet, dataset
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR


@smp.step
def train_step(model, data, target):
    output = model(data)
    loss = F.nll_loss(output, target, reduction="mean")
    model.backward(loss)
    return output, loss


@smp.step
def test_step(model, data, target):
    output = model(data)
    loss = F.nll_loss(output, target, reduction="sum").item()
    pred = output.argmax(dim=1, keepdim=True)
    correct = pred.eq(target.view_as(pred)).sum().item()
    return loss, correct


def train(args, model, device, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        _, loss_mb = train_step(model, data, target)
        loss = loss_mb.reduce_mean()
        optimizer.step()
        if smp.rank() == 0 and batch_idx % args.log_interval == 0:
            print(f"Train Epoch: {epoch} Loss: {loss.item():.7f}")


def test(model, device, loader):
    model.eval()
    test_loss, correct, seen = 0, 0, 0
    with torch.no_grad():
        for data, target in loader:
            loss_mb, correct_mb = test_step(model, data.to(device), target.to(device))
            test_loss += sum(loss_mb)
            correct += sum(correct_mb)
            seen += len(data)
    if smp.mp_rank() == 0:
        print(f"Test set: loss={test_loss / seen:.7f} correct={correct}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--log-interval", type=int, default=1)
    parser.add_argument("--model-dir", default=os.environ["SM_MODEL_DIR"])
    args, _ = parser.parse_known_args()

    smp.init()
    torch.manual_seed(12345)
    device = torch.device("cuda", smp.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    images, labels = dataset()
    loader = list(zip(images.split(args.batch_size), labels.split(args.batch_size)))
    if smp.dp_size() > 1:
        loader = loader[smp.dp_rank() :: smp.dp_size()]

    model = GroupedNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    model = smp.DistributedModel(model)
    optimizer = smp.DistributedOptimizer(optimizer)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, loader, optimizer, epoch)
        test(model, device, loader)
        scheduler.step()

    if smp.dp_rank() == 0:
        partial = {"model_state_dict": model.local_state_dict(), "optimizer_state_dict": optimizer.local_state_dict()}
        smp.save(partial, f"{args.model_dir}/pt_mnist_checkpoint.pt", partial=True)
        model_dict = model.state_dict()
        if smp.rank() == 0:
            smp.save({"model_state_dict": model_dict}, f"{args.model_dir}/pt_mnist.pt", partial=False)
    smp.barrier()
    again = smp.load(f"{args.model_dir}/pt_mnist_checkpoint.pt", partial=True)
    model.load_state_dict(again["model_state_dict"])
    optimizer.load_state_dict(again["optimizer_state_dict"])


if __name__ == "__main__":
    main()
"""


def train_alone() -> tuple[list[float], nn.Module]:
    namespace: dict[str, object] = {}
    exec(NET, namespace)  # noqa: S102 - the test's own text, which the script imports as a module
    torch.manual_seed(12345)
    images, labels = namespace["dataset"]()
    model = namespace["GroupedNet"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    losses = []
    for _ in range(3):
        for data, target in zip(images.split(16), labels.split(16), strict=True):
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
    return losses, model


@pytest.mark.e2e
@pytest.mark.mpi
def test_an_old_script_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    source = tmp_path / "src"
    source.mkdir()
    (source / "train.py").write_text(SCRIPT)
    (source / "net.py").write_text(NET)
    parameters = {"partitions": 2, "microbatches": 4, "pipeline": "interleaved", "optimize": "speed"}
    job = PyTorch(
        "train.py",
        source_dir=str(source),
        instance_type="local_process",
        instance_count=1,
        hyperparameters={"epochs": 3},
        environment={"OMP_NUM_THREADS": "1"},
        distribution={
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
            "mpi": {"enabled": True, "processes_per_host": 2},
        },
    ).fit(logs=False)
    text = "\n".join(line.text for line in job.logs())
    losses, model = train_alone()
    assert [float(loss) for loss in re.findall(r"Loss: (\S+)", text)] == pytest.approx(losses, abs=1e-5)
    assert len(re.findall(r"Test set: loss=\S+ correct=\d+", text)) == 3

    # 4 training steps an epoch; the evaluations are none.
    events = list(job.events())
    assert steps_by_rank(events) == {0: (12, 11), 1: (12, 11)}
    timelines = {event["rank"]: event for event in events if event["kind"] == "timeline"}
    assert {rank: event["step"] for rank, event in timelines.items()} == {0: 10, 1: 10}
    for rank, event in timelines.items():
        assert {tuple(span[:3]) for span in event["spans"]} >= {
            (phase, microbatch, rank) for phase in ("forward", "backward") for microbatch in range(4)
        }
        assert all(0 <= start <= end for *_, start, end in event["spans"])
    assert 0 < timelines[0]["predicted"]["bubble"] < 0.5
    assert "predicted" not in timelines[1]

    with tarfile.open(job.model_data.removeprefix("file://")) as archive:
        archive.extractall(tmp_path / "model", filter="data")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "pt_mnist.pt", "pt_mnist_checkpoint.pt_0", "pt_mnist_checkpoint.pt_1",
    }  # fmt: skip
    saved = torch.load(tmp_path / "model" / "pt_mnist.pt", weights_only=True)["model_state_dict"]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(saved[name], value, atol=1e-5, rtol=0, msg=name)
