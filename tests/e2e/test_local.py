"""The quickstart's training has the same weights in containers and in processes."""

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
    assert job.model_data is not None
    with tarfile.open(job.model_data.removeprefix("file://")) as archive:
        content = archive.extractfile("model.pt")
        assert content is not None
        loaded: dict[str, torch.Tensor] = torch.load(content, weights_only=True)
        return loaded


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.docker
def test_containers_and_processes_train_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    draw = np.random.default_rng(1)
    (tmp_path / "data").mkdir()
    np.savez(
        tmp_path / "data" / "digits.npz",
        train_images=draw.random((256, 1, 8, 8), dtype=np.float32),
        train_labels=draw.integers(0, 10, 256),
        test_images=draw.random((32, 1, 8, 8), dtype=np.float32),
        test_labels=draw.integers(0, 10, 32),
    )

    def train(instance_type: str, hosts: int) -> dict[str, torch.Tensor]:
        parameters = {"partitions": 2, "microbatches": 4, "pipeline": "interleaved"}
        job = PyTorch(
            "train.py",
            source_dir=str(SOURCE),
            # Images contain the framework and MPI. A library in pure Python travels with the script.
            dependencies=[str(Path(tqdm.__file__).parent)],
            instance_type=instance_type,
            instance_count=hosts,
            image_uri=image if instance_type == "local" else None,
            hyperparameters={"epochs": 1},
            # With one thread per rank, the sums have the same order on every machine.
            environment={"OMP_NUM_THREADS": "1"},
            distribution={
                "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
                "mpi": {"enabled": True, "processes_per_host": 2 // hosts},
            },
        ).fit({"training": str(tmp_path / "data")}, logs=False)
        return weights(job)

    in_processes = train("local_process", hosts=1)
    for hosts in (1, 2):
        in_containers = train("local", hosts)
        assert in_containers.keys() == in_processes.keys()
        for name, expected in in_processes.items():
            torch.testing.assert_close(in_containers[name], expected, rtol=0, atol=1e-6)
