"""Keras 3 accepts scripts of TensorFlow 2.3 to 2.6: one test for each line in docs/do/tensorflow-old-scripts.md."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import herringbone_entry
from herringbone_parallel.tensorflow.keras_compat import resets
from tests.parallel.tensorflow.ranks import PYTHON, Ranks, environment

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def script(ranks: Ranks):
    """Return a function that runs a function of `programs/keras_compat.py` and returns its result."""
    return lambda name: ranks.run("keras_compat.run", 1, name)[0]


def test_all_is_put_back(ranks: Ranks) -> None:
    [result] = ranks.run("keras_compat.everything_is_put_back", 1)
    assert result == (False, True, True, True, True, [])


def test_another_keras_is_refused(ranks: Ranks) -> None:
    [messages] = ranks.run("keras_compat.other_versions", 1)
    for version, message in zip(("2.15.0", "4.0.0"), messages, strict=True):
        assert message.startswith(f"ParallelError: Keras {version}: smdistributed.modelparallel.tensorflow and horovod")


def test_get_gradients_are_those_of_a_tape(script) -> None:
    differences, iterations = script("get_gradients")
    assert (differences, iterations) == ([0.0, 0.0], 1)


def test_get_gradients_says_what_is_wrong(script) -> None:
    eager, unused = script("gradients_that_are_not_there")
    assert "get_gradients works on a graph: call it in a function under @smp.step or @tf.function" in eager
    assert "get_gradients: the loss does not depend on unused. Leave what" in unused


def test_variables_may_be_called(script) -> None:
    assert script("variables_may_be_called") == (6, True, 6, {1.0})


def test_the_learning_rate_has_a_short_name(script) -> None:
    assert script("learning_rates") == ((0.25, 0.25), 0.25, 0.125)


def test_decay_is_a_schedule(script) -> None:
    rates, expected, without, message = script("decay")
    assert rates == pytest.approx(expected, rel=1e-6)
    assert without == 0.5
    assert message == "decay=0.1 with a CosineDecay: the schedule decays by itself; leave decay out"


def test_apply_gradients_takes_what_it_took(script) -> None:
    assert script("apply_gradients_of_old") == 0.5


def test_metrics_are_reset_by_both_names(script) -> None:
    plain, own = [(0.0, None)] * 2, [(0.0, 1)] * 4
    assert script("metrics") == plain + own


def test_states_of_a_model_are_reset(script) -> None:
    assert script("recurrent_states") == (False, True)


def test_one_seed_is_enough(script) -> None:
    assert script("seeds") == (True, False)


def test_models_train_on_generators(script) -> None:
    losses, evaluated, predicted, queue, warned = script("generators")
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)
    assert (evaluated, predicted) == pytest.approx((0, 0), abs=1e-6)
    assert queue == (2, 3)
    assert len(warned) == 1
    assert "Keras 3 reads a generator in one thread" in warned[0]


def test_models_predict_classes(script) -> None:
    assert script("predictions") == (True, True, True, (32, 1))


def test_compile_takes_what_it_took(script) -> None:
    assert script("compile_of_old") == ("SGD", ["loss", "mae"])


def test_a_folder_is_a_savedmodel(script) -> None:
    differences, whole, message = script("saved_models")
    assert max(*differences, whole) <= 1e-6
    assert message == "save(signatures=): not with Keras 3; use tf.saved_model.save(model, '/2', signatures=...)"


def test_weights_are_kept_in_the_old_forms(script) -> None:
    differences, messages = script("weights")
    assert differences == [0.0] * 5
    assert "has no weights yet; call it on a batch first" in messages[0]
    assert messages[1] == "load_weights('/tf', by_name=True): a checkpoint is loaded by the model's structure"
    assert messages[2] == "save_weights('/old.h5', overwrite=False): the file exists"


def test_modules_that_moved_are_found(script) -> None:
    half, same, policy, optimizer, message, rate = script("namespaces")
    assert (half, same, policy, optimizer, rate) == (0.5, True, "mixed_bfloat16", "LossScaleOptimizer", 0.5)
    assert "give the optimizer loss_scale_factor=128" in message


def test_a_script_of_that_time_trains(script) -> None:
    means = script("old_script")
    assert means[-1] < means[0] / 1.2


PLAIN = """
from herringbone_entry.ranks import import_hooks
import_hooks.install("", "", "")
IMPORT

class Old(keras.metrics.Mean):
    def reset_states(self):
        super().reset_states()
        print("reset")

metric = Old()
metric.update_state(3.0)
metric.reset_states()
others = [name for name in ("fit_generator", "predict_classes") if hasattr(keras.Model, name)]
print(float(metric.result()), hasattr(keras.Model, "reset_states"), others)
"""


@pytest.mark.parametrize("imports", ["import tensorflow as tf; keras = tf.keras", "import keras"])
def test_a_script_without_our_libraries_resets_metrics_by_the_old_name(imports: str) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
    values = environment()
    values["PYTHONPATH"] += os.pathsep + str(Path(herringbone_entry.__file__).parents[1])
    answer = subprocess.run(
        [PYTHON, "-c", PLAIN.replace("IMPORT", imports)], env=values, capture_output=True, text=True, timeout=100
    )
    assert answer.stdout.splitlines() == ["reset", "0.0 True []"], answer.stderr


@pytest.mark.parametrize(("version", "backend"), [("2.15.0", "tensorflow"), ("3.15.1", "jax"), ("4.0.0", "tensorflow")])
def test_another_keras_stays_as_it_is(version: str, backend: str) -> None:
    # Without `metrics`: what is changed would be missing.
    resets.watch(SimpleNamespace(__version__=version, config=SimpleNamespace(backend=lambda: backend)))
