"""Mistakes raise an error with its cause on every rank, and never hang."""

from __future__ import annotations

import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("program", "parts"),
    [
        ("mistakes.other_model_on_rank_1", ["'sequential/wide/kernel: float32 [4, 8]'", "[4, 9]'"]),
        ("mistakes.other_type_on_rank_1", ["'sequential/wide/kernel: float32 [4, 8]'", "float64 [4, 8]'"]),
        ("mistakes.other_rate_on_rank_1", ["ranks 0 and 1 have drifted apart by step 8", "learning rates"]),
        ("mistakes.other_rate_of_a_table_on_rank_1", ["ranks 0 and 1 have drifted apart by step 8", "learning rates"]),
        ("mistakes.no_broadcast", ["the ranks train from different weights: call broadcast_variables"]),
        ("mistakes.no_broadcast_in_fit", ["the ranks train from different weights: call broadcast_variables"]),
    ],
)
def test_ranks_that_differ_hear_what_differs(ranks: Ranks, program: str, parts: list[str]) -> None:
    for ok, text in ranks.answers(program, 2):
        assert not ok
        assert "ParallelError" in text
        for part in parts:
            assert part in text


def test_weights_may_be_broadcast_after_the_first_step(ranks: Ranks) -> None:
    first, second = ranks.run("mistakes.broadcast_after_the_first_step", 2)
    assert first == second


def test_a_decay_that_waits_for_no_gradient_is_no_other_weight(ranks: Ranks) -> None:
    # 8 -> 3 -> 0.5 -> -0.75
    assert ranks.run("mistakes.decay_without_a_gradient", 2) == [-0.75, -0.75]


def test_a_step_that_xla_compiles_is_refused(ranks: Ranks) -> None:
    for inner_gradient, message in ranks.run("mistakes.compiled_by_xla", 2):
        assert inner_gradient == 4.0
        assert "with Keras, model.compile(..., jit_compile=False)" in message


def test_what_cannot_be_done_is_refused(ranks: Ranks) -> None:
    expected = [
        "DistributedOptimizer wraps Keras 3 optimizers and those of tf.compat.v1.train, not builtins.str",
        "sgd is distributed already: its gradients would be summed twice",
        "bucket_cap_mb -1: it is above 0, and its bytes are a multiple of 128",
        "use_locking=True is for the optimizers of tf.compat.v1.train",
        "device_dense='/gpu:0': gradients travel from the device they are on",
        "op ReduceOp.MAX: gradients are averaged or summed",
        "param_index 2: it is 0 to 1 with num_params 2",
        "an average of int32: only floating point can be averaged",
        "broadcast_global_variables works in a graph of TensorFlow 1",
        "root 2: ranks are 0 to 1",
    ]
    for messages in ranks.run("mistakes.refused", 2):
        assert len(messages) == len(expected)
        for text, start in zip(messages, expected, strict=True):
            assert text.startswith(f"ParallelError: {start}")


def test_a_dead_rank_is_named_within_5_seconds(ranks: Ranks) -> None:
    """The step is in a graph, where the error comes through TensorFlow; in eager code it is the engine's own."""
    (ok, (text, seconds)), second = ranks.answers("mistakes.rank_1_dies", 2)
    assert ok
    assert "rank 1 on algo-2" in text
    assert seconds < 5
    assert second == (False, "died")
