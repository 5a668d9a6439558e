"""Horovod's names, without the real package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow


def test_tensors_and_objects(ranks: Ranks) -> None:
    first, second = ranks.run("horovods.tensors", 2)
    assert (first.pop("ranks"), second.pop("ranks")) == ((0, 2, 0, 1), (1, 2, 0, 1))
    assert (first.pop("hosts"), second.pop("hosts")) == ((0, 2, True, False, False), (1, 2, True, False, False))
    gathered = [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    assert (
        first
        == second
        == {
            "average": [1.0],
            "sum": [20.0],
            "grouped": [2.0, 6.0],
            "slices": [[0.5, 0.5], [0, 1]],
            "allgather": gathered,
            "in a graph": gathered,
            "broadcast": [6],
            "object": {"from": 1},
            "objects": ["a", "b"],
            "refused": [
                "gradient_predivide_factor=2.0",
                "hvd.DistributedOptimizer has no groups here",
                "device_sparse='/cpu",
                "hvd.allreduce",
                "hvd.join",
                "hvd.elastic",
                "hvd.Adasum",
            ],
        }
    )


def test_a_keras_script_with_callbacks(ranks: Ranks, tmp_path: Path) -> None:
    (rates, losses, weights), other = ranks.run("horovods.keras_script", 2, str(tmp_path / "model.keras"))
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["model.keras", "model.keras.backup", "model.keras.backup-rank-1"]
    # The rate rises from that of one rank to that of two ranks, over the two batches of the first epoch.
    np.testing.assert_allclose(rates, [0.15, 0.2, 0.2, 0.2], rtol=1e-6)
    assert (rates, losses) == other[:2]
    assert weights.tobytes() == other[2].tobytes()
