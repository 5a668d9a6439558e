"""The part of the equality matrix that one CUDA device can run: two ranks on it over gloo, and one rank over NCCL.

    python -m pytest tests/gpu --gpu-required

The models, layouts and comparisons are those of `tests/parallel/torch/sharding`, whose ranks see no device.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.gpu.devices import EXACT, is_dry, kind
from tests.parallel.torch.ranks import BACKENDS, Ranks
from tests.parallel.torch.sharding import cells
from tests.parallel.torch.sharding.cells import LAYOUTS, TOLERANCE
from tests.parallel.torch.sharding.models import MODELS

pytestmark = pytest.mark.gpu
# Context parallelism's messages between two ranks need NCCL, so that layout takes the collective.
TWO_RANKS = ("shard 2", "tensor 2", "context 2")


@pytest.fixture(scope="module", params=["cpu:gloo,cuda:gloo", "cpu:gloo,cuda:nccl"], ids=["gloo", "nccl"])
def device_ranks(request: pytest.FixtureRequest) -> Iterator[tuple[str, Ranks]]:
    if is_dry(request.config):
        if "nccl" in request.param:
            pytest.skip("a CPU has no NCCL")
        pool = Ranks(**{BACKENDS: "gloo", "CUDA_VISIBLE_DEVICES": ""})
    elif not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    else:
        pool = Ranks(**{BACKENDS: request.param}, **EXACT)
    yield request.param, pool
    pool.close()


def train(name: str, dtype: torch.dtype) -> tuple[str, object]:
    from herringbone_parallel.torch.sharding import state

    results = cells.train_all({name: MODELS[name]}, [dtype], _train_with_collectives)
    return state.get().device.type, results[name, dtype]


def _train_with_collectives(model: cells.Model, dtype: torch.dtype) -> cells.Trained:
    return cells.train_sharded(model, dtype, cp_comm_type="all_gather")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_ranks_on_a_device_train_as_one_process(
    device_ranks: tuple[str, Ranks], pytestconfig: pytest.Config, name: str, dtype: torch.dtype
) -> None:
    backends, pool = device_ranks
    alone = {"one rank": cells.Layout(1, {"hybrid_shard_degree": 1}, 1)}
    layouts = alone if "nccl" in backends else {layout: LAYOUTS[layout] for layout in TWO_RANKS}
    for layout, (count, parameters, batches, axes) in layouts.items():
        answers = pool.shard(train, count, dict(parameters), name, dtype)
        assert {where for where, _ in answers} == {kind(pytestconfig)}
        by_rank = [trained for _, trained in answers]
        reasons = [MODELS[name].refused[axis] for axis in axes if axis in MODELS[name].refused]
        if reasons:
            assert all(reasons[0] in str(refusal) for refusal in by_rank), layout
            continue
        difference = cells.compare(by_rank, cells.train_alone(MODELS[name], dtype, batches))
        assert max(difference.losses, difference.weights) <= TOLERANCE[dtype], f"{layout}: {difference}"
