"""Models that `torch.distributed.pipelining` refuses, each with its error, train here as in one process."""

from __future__ import annotations

import logging

import pytest
import torch

from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.model_parallel.test_equality import assert_equal, settings, train, train_alone
from tests.parallel.torch.ranks import Ranks

pipelining = pytest.importorskip("torch.distributed.pipelining", reason="torch has it from 2.4")

NOT_ONE_GRAPH = "cannot capture your model as a full graph"
# The model, the module before which to cut it, and the error of torch 2.13.
REFUSED = [
    ("BranchOnData", "head", NOT_ONE_GRAPH),
    ("LoopOnData", "head", NOT_ONE_GRAPH),
    ("ReturnsDataclass", "head", NOT_ONE_GRAPH),
    ("StopGradient", "head", "references nonexistent attribute"),
    ("Checkpointed", "block.inner", "references nonexistent attribute"),
    ("ReachedInto", "encoder.middle.2", "has no attribute 'weight'"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "cut", "error"), REFUSED)
def test_a_model_that_torch_refuses_trains_as_in_one_process(ranks: Ranks, name: str, cut: str, error: str) -> None:
    module, inputs, _ = models.build(name)
    logging.disable(logging.CRITICAL)
    try:
        with pytest.raises((RuntimeError, AttributeError), match=error):
            pipelining.pipeline(module, (inputs[:2],), split_spec={cut: pipelining.SplitPoint.BEGINNING})
    finally:
        logging.disable(logging.NOTSET)
    by_rank = ranks.run(train, settings(2, 4, "interleaved", "contiguous"), name, "contiguous", torch.float64)
    assert_equal(by_rank, train_alone(name, 4, torch.float64), torch.float64)
