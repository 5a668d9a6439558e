"""Version 1's library on a CUDA device: two ranks train as one process, as a pipeline and as replicas.

    python -m pytest tests/gpu --gpu-required

Where there is one device, both ranks share it. The models and the one process are those of
`tests/parallel/torch/model_parallel`, whose ranks see no device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.gpu.devices import EXACT, is_dry, kind
from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.model_parallel.test_equality import Trained, train_alone, train_case
from tests.parallel.torch.ranks import Ranks

pytestmark = pytest.mark.gpu
# A device adds in another order than a CPU. Updates are larger than gradients, which the tolerance of float32 counts.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
# These make no tensors in their own code, which would be on the CPU.
NAMES = ("Normed", "ConvNet", "Recurrent", "LanguageModel")
MICROBATCHES = 2
PIPELINES = ("simple", "interleaved")
REPLICAS = {"partitions": 1, "microbatches": MICROBATCHES, "ddp": True, "replicas": 2}


@pytest.fixture(scope="module")
def device_ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    if is_dry(request.config):
        pool = Ranks(CUDA_VISIBLE_DEVICES="")
    elif not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    else:
        pool = Ranks(**EXACT)
    yield pool
    pool.close()


def train(name: str, dtype: torch.dtype) -> tuple[str, Trained]:
    """Train a model on the rank's device. The results are on the CPU, where another process reads them."""
    from herringbone_parallel.torch.model_parallel import state

    device, case = state.get().device, models.ALL[name]

    def inputs() -> tuple[torch.Tensor, torch.Tensor]:
        batch, target = case.inputs()
        return batch.to(device), target.to(device)

    trained = train_case(replace(case, inputs=inputs), "automatic", dtype)
    parts = ({key: tensor.cpu() for key, tensor in part.items()} for part in trained[1:])
    return device.type, Trained(trained.losses, *parts)


def difference(by_rank: list[Trained], alone: Trained) -> float:
    """Return the largest difference of any rank's losses, gradients and tensors to those of one process."""
    worst = 0.0
    for trained in by_rank:
        worst = max(worst, *(abs(a - b) for a, b in zip(trained.losses, alone.losses, strict=True)))
        # Gradients, parameters and buffers; a rank of a pipeline holds some of them.
        for ours, theirs in zip(trained[1:], alone[1:], strict=True):
            assert set(ours) <= set(theirs)
            apart = [(tensor.double() - theirs[key].double()).abs().max().item() for key, tensor in ours.items()]
            worst = max([worst, *apart])
    return worst


def check(
    pool: Ranks, config: pytest.Config, parameters: dict[str, Any], name: str, dtype: torch.dtype
) -> list[Trained]:
    answers = pool.run(train, parameters, name, dtype)
    assert [where for where, _ in answers] == [kind(config)] * 2
    by_rank = [trained for _, trained in answers]
    assert difference(by_rank, train_alone(name, MICROBATCHES, dtype)) <= TOLERANCE[dtype]
    return by_rank


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_pipeline(
    device_ranks: Ranks, pytestconfig: pytest.Config, name: str, dtype: torch.dtype, pipeline: str
) -> None:
    parameters = {"partitions": 2, "microbatches": MICROBATCHES, "pipeline": pipeline}
    by_rank = check(device_ranks, pytestconfig, parameters, name, dtype)
    assert all(trained.parameters for trained in by_rank), "each rank holds a part of the model"


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_replicas(
    device_ranks: Ranks, pytestconfig: pytest.Config, name: str, dtype: torch.dtype, backend: str
) -> None:
    if backend == "nccl" and torch.cuda.device_count() < 2:
        pytest.xfail("NCCL sums between two devices, and there are fewer")
    check(device_ranks, pytestconfig, {**REPLICAS, "ddp_dist_backend": backend}, name, dtype)
