"""A network that two pods train together gets the weights that two processes of this machine get."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.kubernetes.cluster import Cluster

pytestmark = pytest.mark.kubernetes
ROOT = Path(__file__).parents[2]
SCRIPT = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.load(os.path.join(os.environ["SM_CHANNEL_TRAINING"], "data.pt"))
rank, size = dist.get_rank(), dist.get_world_size()
for epoch in range(5):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(data["x"][rank::size]), data["y"][rank::size])
    loss.backward()
    optimizer.step()
    print(f"epoch={epoch} loss={loss.item():.6f}", flush=True)
if rank == 0:
    torch.save(model.module.state_dict(), os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))
dist.destroy_process_group()
"""


@pytest.fixture
def packages(cluster: Cluster, namespace: str) -> Iterator[dict[str, str]]:
    """Claims with the Python packages of the tests, each with its folder in the pods."""
    folders = {"packages": Path(sysconfig.get_path("purelib")), "parallel": ROOT / "parallel"}
    for name, folder in folders.items():
        cluster.make_volume(name, namespace, folder)
    yield {name: f"/mnt/{name}" for name in folders}
    for name in folders:
        cluster.kubectl("delete", "persistentvolumeclaim", name, f"--namespace={namespace}", "--wait=false")
        cluster.kubectl("delete", "persistentvolume", name, "--wait=false")


def test_the_weights_are_those_of_local_process(submit, results, packages) -> None:
    Path("data").mkdir()
    torch.manual_seed(1)
    torch.save({"x": torch.randn(256, 64), "y": torch.randint(0, 10, (256,))}, "data/data.pt")
    shared = {"inputs": "data", "environment": {"OMP_NUM_THREADS": "1"}}
    alone = submit(
        SCRIPT, job_name="alone", instance_type="local_process", image_uri=None, output_path=None, **shared
    ).wait()
    environment = {**shared["environment"], "PYTHONPATH": ":".join(packages.values())}
    job = submit(SCRIPT, job_name="pods", inputs="data", environment=environment, kubernetes={"volumes": packages})
    job.wait()
    assert job.status == alone.status == "Completed"
    alone.download_model("alone-model")
    expected = torch.load(next(Path("alone-model").rglob("model.pt")))
    trained = torch.load(results / "jobs/pods/hosts/algo-1/ml/model/model.pt")
    assert expected.keys() == trained.keys()
    assert all(torch.equal(expected[name], trained[name]) for name in expected)
