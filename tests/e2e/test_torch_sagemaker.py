"""A script for AWS's version 2, through fit(): two hosts share the training state, and train as one process does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from herringbone import PyTorch
from tests.e2e.counted import steps_by_rank

MODEL = """
import torch
from torch import nn
from torch.utils.data import Dataset

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, inputs):
        for layer in self.layers:
            inputs = torch.tanh(layer(inputs))
        return self.head(inputs)

class Data(Dataset):
    def __init__(self):
        torch.manual_seed(1)
        self.inputs, self.targets = torch.randn(32, 6), torch.randint(0, 3, (32,))

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]
"""
SCRIPT = (
    "import torch.sagemaker as tsm\nimport torch.sagemaker.distributed.checkpoint.state_dict_saver as saver\n"
    + MODEL
    + """
def main():
    import os
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    tsm.init()
    torch.manual_seed(2 + tsm.state.rank)
    model = tsm.transform(Model(), load_state_dict_from_rank0=True)
    model = FullyShardedDataParallel(model, use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Data()
    sampler = DistributedSampler(data, num_replicas=tsm.state.dp_size, rank=tsm.state.dp_rank, shuffle=False)
    # A worker that is spawned imports this file once more, and with it torch.sagemaker.
    workers = {"num_workers": 1, "multiprocessing_context": "spawn"}
    for inputs, targets in DataLoader(data, batch_size=4, sampler=sampler, **workers):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        norm = tsm.clip_grad_norm_(model, 100.0)
        optimizer.step()
        torch.distributed.all_reduce(loss.detach_())
        if tsm.state.rank == 0:
            print(f"loss={loss / tsm.state.world_size:.7f} norm={norm:.7f}", model.process_group.size())
    saver.save({"model": tsm.shard(Model()).state_dict()}, checkpoint_id=os.environ["SM_CHECKPOINT_DIR"] + "/step-4")

if __name__ == "__main__":
    main()
"""
)


def losses_alone() -> list[tuple[float, float]]:
    names: dict[str, type] = {}
    exec(MODEL, names)  # noqa: S102 - the script's own classes
    torch.manual_seed(2)
    model, data = names["Model"](), names["Data"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for start in range(0, 32, 8):
        optimizer.zero_grad()
        # Each of the two samplers takes every second example, so a step trains on the next eight.
        loss = nn.functional.cross_entropy(model(data.inputs[start : start + 8]), data.targets[start : start + 8])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.step()
        losses.append((loss.item(), norm.item()))
    return losses


@pytest.mark.e2e
def test_a_script_for_version_2_trains_through_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    job = PyTorch(
        "train.py",
        source_dir=str(tmp_path / "src"),
        instance_type="local_process",
        instance_count=2,
        environment={"OMP_NUM_THREADS": "1"},
        checkpoint_s3_uri=(tmp_path / "checkpoints").as_uri(),
        distribution={
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"hybrid_shard_degree": 2}}},
            "torch_distributed": {"enabled": True},
        },
    ).fit()
    log = "\n".join(str(line) for line in job.logs())
    measured = [tuple(map(float, pair)) for pair in re.findall(r"loss=([0-9.]+) norm=([0-9.]+) 2", log)]
    assert [value for pair in measured for value in pair] == pytest.approx(
        [value for pair in losses_alone() for value in pair], abs=1e-6
    )
    assert {rank: count for rank, (count, _) in steps_by_rank(job.events()).items()} == {0: 4, 1: 4}
    assert (tmp_path / "checkpoints" / "step-4" / "manifest.json").is_file()
