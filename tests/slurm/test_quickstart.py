"""The quickstart's training on two nodes of a cluster reaches the same weights as in processes of one machine."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import tqdm

from herringbone import PyTorch, TrainingJob

SOURCE = Path(__file__).parents[2] / "examples" / "digits" / "src"


def weights(job: TrainingJob) -> dict[str, torch.Tensor]:
    with tarfile.open(job.model_data.removeprefix("file://")) as archive:
        return torch.load(archive.extractfile("model.pt"), weights_only=True)


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.slurm
def test_nodes_reach_the_weights_of_processes(tmp_path: Path, home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERRINGBONE_HEARTBEAT", "5")
    generator = np.random.default_rng(0)
    images = generator.random((256, 1, 8, 8), dtype=np.float32)
    labels = generator.integers(0, 10, 256)
    (tmp_path / "data").mkdir()
    arrays = {
        f"{part}_{name}": array
        for part in ("train", "test")
        for name, array in (("images", images), ("labels", labels))
    }
    np.savez(tmp_path / "data" / "digits.npz", **arrays)
    options = {
        "source_dir": str(SOURCE),
        "dependencies": [str(Path(tqdm.__file__).parent)],
        "hyperparameters": {"epochs": 1},
        "environment": {"OMP_NUM_THREADS": "1"},
    }
    jobs = [
        PyTorch(
            "train.py",
            instance_type=instance_type,
            instance_count=hosts,
            distribution={
                "smdistributed": {
                    "modelparallel": {"enabled": True, "parameters": {"partitions": 2, "microbatches": 4}}
                },
                "mpi": {"enabled": True, "processes_per_host": 2 // hosts},
            },
            **options,
        ).fit({"training": str(tmp_path / "data")}, wait=False)
        for instance_type, hosts in (("slurm:gpu", 2), ("local_process", 1))
    ]
    assert [job.wait(timeout=100).status for job in jobs] == ["Completed", "Completed"]
    nodes, processes = map(weights, jobs)
    assert nodes.keys() == processes.keys()
    assert max((nodes[name] - processes[name]).abs().max().item() for name in nodes) <= 1e-6
