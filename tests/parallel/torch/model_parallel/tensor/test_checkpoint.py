"""A checkpoint of shared layers has the whole tensors, and resumes with any tensor and sharding degree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from herringbone_parallel.torch.checkpoint import api as checkpoint
from tests.parallel.torch.model_parallel.tensor.test_equality import LAYOUTS, TWO, batch_of, build, loss_of
from tests.parallel.torch.ranks import Ranks

ALONE = {"partitions": 1}
SHARDED = {
    **TWO,
    "replicas": 2,
    "sharded_data_parallel_degree": 2,
    "sdp_param_persistence_threshold": 0,
}


def train(folder: str, resume: bool) -> Any:
    """Return the whole weights and states after a step and a save, or after a resume alone."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module = build("Encoder")
    smp.set_tensor_parallelism(module)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))

    @smp.step
    def train_step(ids: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model(ids), ids)
        model.backward(loss)
        return loss

    train_step(batch_of(smp.dp_rank()))
    optimizer.step()
    if resume:
        assert smp.resume_from_checkpoint(folder) == {"step": 1}
    else:
        smp.save_checkpoint(folder, "a", model=model, optimizer=optimizer, user_content={"step": 1})
    return model.state_dict(), optimizer.state_dict()["state"]


@pytest.mark.parametrize("saved", [TWO, SHARDED, LAYOUTS["tensor 2, 2 replicas"]])
def test_shared_layers_are_saved_whole_and_resume_anywhere(ranks: Ranks, tmp_path: Path, saved: dict[str, Any]) -> None:
    weights, states = ranks.run(train, dict(saved), str(tmp_path), False)[0]
    plain = checkpoint.read_plain(tmp_path / "a_partial")["model"]
    assert plain.keys() == weights.keys()
    assert all(torch.equal(plain[name], value) for name, value in weights.items())
    for layout in (ALONE, TWO, SHARDED):
        for resumed in ranks.run(train, dict(layout), str(tmp_path), True):
            torch.testing.assert_close(resumed, (weights, states), rtol=0, atol=0)
