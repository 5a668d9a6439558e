"""Keras's `fit`, `evaluate` and `predict` over the ranks of a pipeline give the figures of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow

# For each model: the number of partitions, and (way, pipeline, microbatches, placement). A model whose figures depend
# on the size of a microbatch runs with one microbatch.
CASES = {
    "functional": (2, [("arrays", "interleaved", 4, [0, 1, 1]), ("datasets", "simple", 2, [1, 0, 1])]),
    "sequential": (2, [("datasets", "interleaved", 4, [0, 1])]),
    "nested": (3, [("arrays", "interleaved", 2, [0, 1, 2, 0])]),
    "two inputs": (2, [("datasets", "simple", 4, [0, 1, 0])]),
    "two outputs": (2, [("arrays", "interleaved", 4, [0, 1])]),
    "penalized": (2, [("arrays", "simple", 2, [0, 1])]),
    "batch norm": (2, [("datasets", "interleaved", 1, [0, 1, 1])]),
    "dropout": (2, [("arrays", "interleaved", 1, [0, 1])]),
}


@pytest.mark.parametrize("model", CASES)
def test_fit_is_that_of_one_process(ranks: Ranks, model: str) -> None:
    partitions, ways = CASES[model]
    answers = ranks.run("fitting.together", partitions, model, ways, **ranks.model_parallel(partitions=partitions))
    expected = ranks.run("fitting.alone", 1, model, [way for way, *_ in ways])[0]
    for number, way in enumerate(ways):
        history, evaluated, predicted, weights = expected[number]
        joined: dict[str, Any] = {}
        for rank in answers:
            ours = rank[number]
            assert set(ours[0]) == set(history)
            for name, values in history.items():
                _close(ours[0][name], values, f"{way} {name}")
            _close(ours[1], evaluated, f"{way} evaluate")
            for output, wanted in zip(ours[2], predicted, strict=True):
                _close(output, wanted, f"{way} predict")
            assert not set(joined) & set(ours[3]), "a variable is on one rank only"
            joined.update(ours[3])
        assert set(joined) == set(weights)
        for name, values in joined.items():
            _close(values, weights[name], f"{way} {name}")


# The model of words has sparse gradients, by which Adam takes other steps.
@pytest.mark.parametrize(("model", "placement"), [("functional", [0, 1, 1]), ("words", [0, 1])])
def test_replicas_fit_their_shares_as_one_process_does_the_whole(
    ranks: Ranks, model: str, placement: list[int]
) -> None:
    two = ranks.model_parallel(partitions=2, microbatches=2)
    answers = ranks.run("fitting.replicas", 4, model, placement, False, **two)
    losses, weights = ranks.run("fitting.replicas", 1, model, placement, True)[0]
    _close(np.mean([answers[0][0], answers[2][0]], axis=0), losses, "losses")
    for first, second in ((0, 1), (2, 3)):
        assert answers[first][0] == answers[second][0]
        ours = {**answers[first][1], **answers[second][1]}
        assert set(ours) == set(weights)
        for name, values in ours.items():
            _close(values, weights[name], name)


def test_callbacks_write_the_whole_model(ranks: Ranks, tmp_path: Path) -> None:
    two = ranks.model_parallel(partitions=2, microbatches=2)
    answers = ranks.run("fitting.kept_by_callbacks", 2, str(tmp_path), **two)
    assert [written for *_, written in answers] == [[True, True], [False, True]]
    for files, checkpoint, difference, _ in answers:
        assert files == ["best.weights.h5", "last.weights.h5"]
        assert checkpoint == str(tmp_path / "checkpoints" / "ckpt-2")
        assert difference <= 1e-6
    for early in (False, True):
        for difference, own_variables in ranks.run(
            "fitting.loaded", 2, str(tmp_path / "last.weights.h5"), early, **two
        ):
            assert difference <= 1e-6
            assert own_variables == 4


def test_what_needs_the_whole_model_is_refused_before_it_starts(ranks: Ranks, tmp_path: Path) -> None:
    expected = [
        "ParallelError: compile(jit_compile=True): XLA cannot leave for another rank",
        "ParallelError: compile: global_clipnorm=1.0 needs the gradients of all ranks",
        "ParallelError: compile: a LossScaleOptimizer looks for overflows in the gradients of one rank",
        "ParallelError: compile: MeanSquaredError(reduction='sum') of a batch is not the mean over its microbatches",
        f"ParallelError: ModelCheckpoint('{tmp_path}/model.keras') saves the model of one rank",
        "ParallelError: BackupAndRestore saves the optimizer of one rank: use smp.CheckpointManager",
        "ParallelError: TensorBoard(histogram_freq=...) reads weights that other ranks hold",
        f"ParallelError: {tmp_path}/checkpoint: the weights of a model on several ranks are saved as a Keras file",
        f"ParallelError: load_weights('{tmp_path}/none.weights.h5'): there is no such file on the first rank's host",
        "ParallelError: smp.DistributedModel(Own(...)): Own has train_step, trainable_variables of its own",
        "ParallelError: smp.DistributedModel(Sequential(...)): Sequential has compute_loss of its own",
    ]
    two = ranks.model_parallel(partitions=2, microbatches=2)
    for messages in ranks.run("fitting.refused", 2, str(tmp_path), **two):
        for text, start in zip(messages, expected, strict=True):
            assert text.startswith(start)


def test_no_batch_is_taken_for_the_end_of_the_data(ranks: Ranks) -> None:
    two = ranks.model_parallel(partitions=2, microbatches=2)
    expected = [
        "is a SparseTensor, which cannot be cut into microbatches",
        "is a RaggedTensor, which cannot be cut into microbatches",
        "is a SparseTensor, which cannot be cut into microbatches",
        "a step of a batch ended with StopIteration",
        "a step of a batch ended with OutOfRangeError",
    ]
    for messages in ranks.run("fit_refusals.no_step_for_the_data", 2, **two):
        for message, words in zip(messages, expected, strict=True):
            assert message.startswith("ParallelError: ")
            assert words in message


def test_a_loss_that_is_no_mean_over_samples_is_refused(ranks: Ranks) -> None:
    names = [
        "_sum_of_squares",
        "_distance_to_others",
        "sum_of_errors",
        "_hardest_of_other_classes",
        "called",
        "tversky",
        "circle",
        "_mean_of_the_unmasked",
    ]
    two = ranks.model_parallel(partitions=2, microbatches=2)
    for *refused, served in ranks.run("fit_refusals.losses_of_batches", 2, **two):
        for name, message in zip(names, refused, strict=True):
            assert message.startswith(f"ParallelError: fit: the loss {name!r} of a batch is not the mean over its")
        assert served == "nothing"


def test_a_term_that_adds_up_samples_is_refused(ranks: Ranks) -> None:
    two = ranks.model_parallel(partitions=2, microbatches=2)
    for *refused, served in ranks.run("fit_refusals.summed_terms", 2, **two):
        for message in (message for messages in refused for message in messages):
            assert message.startswith("ParallelError: fit: the loss of a batch is not the mean over its microbatches: ")
            assert "adds up samples, in add_loss or in a compute_loss of the model's own" in message
        assert served == ["nothing", "nothing"]


def test_a_layer_with_a_state_for_each_sample_is_refused(ranks: Ranks) -> None:
    two = ranks.model_parallel(partitions=2, microbatches=2)
    for messages in ranks.run("fit_refusals.stateful", 2, **two):
        for message in messages:
            assert message.startswith("ParallelError: layer '")
            assert "a step sees the 2 microbatches of a batch one by one. Use microbatches: 1" in message


def test_a_layer_that_changes_its_kernel_takes_one_microbatch(ranks: Ranks) -> None:
    two = ranks.model_parallel(partitions=2, microbatches=2)
    for refused, served in ranks.run("fit_refusals.changing_its_kernel", 2, **two):
        assert refused.startswith("ParallelError: the layer of '")
        assert "assigns to this weight in its call, which runs once for each of 2 microbatches" in refused
        assert served == "nothing"


def test_outputs_have_the_names_of_the_wrapped_model(ranks: Ranks) -> None:
    expected = ranks.run("fitting.outputs_by_name", 1, False)[0]
    two = ranks.model_parallel(partitions=2, microbatches=2)
    for figures in ranks.run("fitting.outputs_by_name", 2, True, **two):
        assert set(figures) == set(expected)
        for name, values in figures.items():
            _close(values, expected[name], name)


def test_keras_on_another_framework_is_refused(ranks: Ranks) -> None:
    (message,) = ranks.run("fit_refusals.other_backend", 1, **ranks.model_parallel())
    assert message.startswith("ParallelError: Keras runs on jax here: set KERAS_BACKEND=tensorflow in the job's")


def test_ranks_that_read_other_batches_are_named(ranks: Ranks) -> None:
    two = ranks.model_parallel(partitions=2, microbatches=2)
    for data_message, seed_message, without_seed in ranks.run("fitting.other_batches", 2, **two):
        assert data_message.startswith(
            "ParallelError: ranks 0 and 1 of a pipeline were given other batches. Every rank"
        )
        assert seed_message.startswith(
            "ParallelError: fit: the ranks of this pipeline shuffle with other seeds, [0, 1]."
        )
        assert without_seed == "nothing"


def test_a_rank_may_have_no_variables(ranks: Ranks) -> None:
    first, second = ranks.run("fitting.a_rank_without_variables", 2, **ranks.model_parallel(partitions=2))
    assert first == (3, 2, second[2])
    assert second[:2] == (3, 0)


def test_half_precision_trains_with_a_fixed_scale(ranks: Ranks) -> None:
    expected = ranks.run("fitting.in_half_precision", 1, None)[0]
    assert expected[-1] < expected[0] - 0.01
    answers = ranks.run("fitting.in_half_precision", 2, [0, 1], **ranks.model_parallel(partitions=2, microbatches=4))
    assert answers[0] == answers[1]
    np.testing.assert_allclose(answers[0], expected, rtol=0, atol=2e-3)


def test_a_train_step_may_be_of_ones_own(ranks: Ranks) -> None:
    expected = ranks.run("fitting.by_a_step_of_its_own", 1, False)[0]
    two = ranks.model_parallel(partitions=2, microbatches=4)
    for losses in ranks.run("fitting.by_a_step_of_its_own", 2, True, **two):
        _close(losses, expected, "losses")


def test_what_is_compiled_again_is_trained_anew(ranks: Ranks) -> None:
    expected, counts = ranks.run("fitting.compiled_again", 1, False)[0]
    answers = ranks.run("fitting.compiled_again", 2, True, **ranks.model_parallel(partitions=2, microbatches=2))
    for figures, _ in answers:
        for number, (ours, theirs) in enumerate(zip(figures, expected, strict=True)):
            _close(ours, theirs, f"fit {number}")
    assert np.sum([ours for _, ours in answers], axis=0).tolist() == counts


def _close(ours: Any, theirs: Any, what: str) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6, err_msg=what)
