"""Mistakes raise an error with its cause on every rank, and never hang."""

from __future__ import annotations

import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow


def test_what_cannot_be_done_is_refused(ranks: Ranks) -> None:
    expected = [
        "ParallelError: net was called outside of a step",
        "ParallelError: 2 microbatches do not divide a batch of 5 (argument 'inputs', axis 0)",
        "ParallelError: refused.<locals>.step: a step inside another step",
        "ParallelError: smp.barrier inside a step",
        "ParallelError: SGD.apply_gradients inside a function under @smp.step, which runs once for each microbatch",
        *["ParallelError: an assignment to 'net/dense/kernel' inside a function under @smp.step"] * 2,
        "ParallelError: smp.step(jit_compile=True): XLA cannot leave for another rank",
        "ParallelError: smp.step has no argument 'inline'",
        "ParallelError: smp.step(non_split_inputs=...): ",
        "ParallelError: smp.partition(2): with partitions=2 it is 0 to 1",
        "ParallelError: a second smp.DistributedModel",
        "ParallelError: smp.send: WORLD_RANK ",
        "ParallelError: StepOutput.accumulate(method='sum'): it is one of variable, add_n, accumulate_n",
    ]
    variables = ranks.model_parallel(partitions=2, microbatches=2)
    for messages in ranks.run("pipeline_mistakes.refused", 2, **variables):
        for text, start in zip(messages, expected, strict=True):
            assert text.startswith(start)


def test_a_cut_inside_a_loop_is_refused_by_name(ranks: Ranks) -> None:
    for message in ranks.run("pipeline_mistakes.cut_in_a_loop", 2, **ranks.model_parallel(partitions=2)):
        assert message.startswith("ParallelError: a tf.while_loop (")
        assert "uses variables of several partitions" in message


def test_half_precision_needs_a_scaled_loss(ranks: Ranks) -> None:
    answers = ranks.run("pipeline_mistakes.half_precision", 2, **ranks.model_parallel(partitions=2))
    for unscaled, fixed, dynamic in answers:
        assert "computes in float16, and the gradients are of a loss that is not scaled" in unscaled
        assert fixed == "nothing"
        assert "scale_loss: a LossScaleOptimizer looks for overflows in the gradients of one rank" in dynamic


def test_a_norm_over_all_gradients_is_refused_when_they_are_applied(ranks: Ranks) -> None:
    answers = ranks.run("pipeline_mistakes.clipped_by_the_norm_of_all", 2, **ranks.model_parallel(partitions=2))
    for (applied, clipped, normed, with_a_norm, in_the_step), works_again in answers:
        assert "ParallelError: SGD.apply: global_clipnorm=1.0 needs the gradients of all ranks" in applied
        assert clipped.startswith("ParallelError: clip_by_global_norm outside of a step: a rank has the gradients")
        assert "global_norm outside of a step" in normed
        assert (with_a_norm, in_the_step) == ("nothing", "nothing")
        assert works_again


def test_ranks_with_other_batches_are_told_after_the_first_step(ranks: Ranks) -> None:
    for eager, in_graph, same in ranks.run(
        "pipeline_mistakes.other_batch_on_rank_1", 2, **ranks.model_parallel(partitions=2)
    ):
        for text in (eager, in_graph):
            assert "ranks 0 and 1 of a pipeline were given other batches" in text
        assert same == "nothing"


def test_ranks_with_other_shapes_are_told(ranks: Ranks) -> None:
    messages = ranks.run("pipeline_mistakes.other_shapes_on_rank_1", 2, **ranks.model_parallel(partitions=2))
    assert any("the ranks run different steps" in text for text in messages)
    assert "nothing" not in messages


def test_a_failure_reaches_the_others(ranks: Ranks) -> None:
    first, second = ranks.run("pipeline_mistakes.rank_1_fails", 2, **ranks.model_parallel(partitions=2))
    assert "no such word" in second
    assert first.startswith("PeerFailedError: rank 1 on algo-2 failed: ValueError: no such word")


def test_a_rank_that_gathers_alone_does_not_hang(ranks: Ranks) -> None:
    first, second = ranks.run("pipeline_mistakes.rank_0_gathers_alone", 2, **ranks.model_parallel(partitions=2))
    assert "rank 1 on algo-2 has ended, and this rank still waits for it" in first
    assert "rank 0 on algo-1 waits in smp.send, broadcast, allgather, barrier or get_weights for this rank" in second


def test_a_stopped_rank_is_named_within_5_seconds(ranks: Ranks) -> None:
    (text, seconds), _ = ranks.run("pipeline_mistakes.rank_1_is_stopped", 2, **ranks.model_parallel(partitions=2))
    assert "rank 1 on algo-2 stopped answering rank 0 on algo-1: nothing came for 3.5 s" in text
    assert seconds < 5


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_dead_rank_is_named_within_5_seconds(ranks: Ranks, in_graph: bool) -> None:
    variables = ranks.model_parallel(partitions=2)
    (ok, (text, seconds)), second = ranks.answers("pipeline_mistakes.rank_1_dies", 2, in_graph, **variables)
    assert ok
    assert "rank 1 on algo-2 is lost" in text
    assert seconds < 5
    assert second == (False, "died")
