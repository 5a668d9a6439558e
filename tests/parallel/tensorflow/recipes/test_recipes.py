"""The recipes for Keras give the same numbers as those for torch, step by step; and tests of the rest of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from herringbone_parallel.torch.recipes import api as recipes
from herringbone_parallel.torch.recipes.api import Schedule
from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow

TWO = {"HERRINGBONE_AGGREGATION_FREQUENCY": "2"}
DECAY = 0.02
# By Keras's names. `query/bias` is the bias of an attention with three heads, and `empty` has a norm of 0.
SHAPES = {
    "conv/kernel": (3, 3, 2, 4),
    "conv/bias": (4,),
    "norm/gamma": (4,),
    "query/bias": (3, 4),
    "kernel": (12, 5),
    "empty": (5, 2),
}
MATRICES = ("conv/kernel", "kernel", "empty")


def arrays(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def beginning() -> dict[str, Any]:
    return {name: 0 * array if name == "empty" else array for name, array in arrays(0).items()}


def of_torch(optimizer: str, settings: dict[str, Any], gradients: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the weights after each step of torch's recipe, at the rates of the same schedule."""
    weights = {name: torch.nn.Parameter(torch.from_numpy(array)) for name, array in beginning().items()}
    groups = [
        {"params": [weights[name] for name in MATRICES], "weight_decay": DECAY, "adapt": True},
        {"params": [weights[name] for name in SHAPES if name not in MATRICES], "weight_decay": 0.0, "adapt": False},
    ]
    recipe = getattr(recipes, optimizer)(groups, lr=0.3, **settings)
    factor = Schedule(length=6, warmup=2, decay="polynomial", power=2).by_steps()
    history = []
    for step, step_gradients in enumerate(gradients):
        for group in recipe.param_groups:
            group["lr"] = 0.3 * factor(step)
        for name, weight in weights.items():
            weight.grad = torch.from_numpy(step_gradients[name]) if name in step_gradients else None
        recipe.step()
        history.append({name: weight.detach().numpy().copy() for name, weight in weights.items()})
    return history


@pytest.mark.parametrize(
    ("optimizer", "keras", "torchs"),
    [
        ("LARS", {"momentum": 0.8, "trust": 0.01}, {"momentum": 0.8, "trust": 0.01}),
        ("LAMB", {"beta_2": 0.99, "epsilon": 1e-5}, {"betas": (0.9, 0.99), "eps": 1e-5}),
    ],
)
def test_each_step_is_that_of_torchs_recipe(
    ranks: Ranks, optimizer: str, keras: dict[str, Any], torchs: dict[str, Any]
) -> None:
    gradients = [arrays(step) for step in range(1, 9)]  # two more than the schedule has
    if optimizer == "LARS":
        del gradients[2]["kernel"]  # a weight without a gradient stays, and so does its velocity
    expected = of_torch(optimizer, torchs, gradients)
    for in_graph in (False, True):
        args = (optimizer, {**keras, "weight_decay": DECAY}, beginning(), gradients, in_graph)
        [history] = ranks.run("recipes.steps", 1, *args)
        for step, (ours, theirs) in enumerate(zip(history, expected, strict=True)):
            for name in SHAPES:
                np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-6, atol=2e-6, err_msg=f"{step} {name}")


def test_two_backwards_are_one_step_on_twice_the_batch_in_fit(ranks: Ranks) -> None:
    """The rates change with every step; one process trains with a scaled loss, two ranks without."""
    [expected] = ranks.run("recipes.trained", 1, 2, False)
    [alone] = ranks.run("recipes.trained", 1, 1, True, **TWO)
    np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-6)
    first, second = ranks.run("recipes.trained", 2, 1, False, **TWO)
    np.testing.assert_allclose(first, expected, rtol=0, atol=1e-6)
    assert first.tobytes() == second.tobytes()


def test_a_saved_model_goes_on_with_the_same_numbers(ranks: Ranks) -> None:
    [(classes, whole, resumed)] = ranks.run("recipes.resumed", 1)
    assert classes == ["LAMB", "ScheduledRate"]
    np.testing.assert_array_equal(resumed, whole)


def test_what_is_excluded_from_weight_decay_stays_so_over_ranks(ranks: Ranks) -> None:
    [decayed] = ranks.run("recipes.excluded", 1)
    # The script excludes the first kernel itself, and biases by their name.
    assert decayed == [False, False, True, False, True, False]


def test_statistics_are_those_of_all_ranks_together(ranks: Ranks) -> None:
    (first, momentum), (second, _) = ranks.run("recipes.averaged", 2)
    [(alone, _)] = ranks.run("recipes.averaged", 1)
    for ours, others, expected in zip(first, second, alone, strict=True):
        np.testing.assert_array_equal(ours, others)
        np.testing.assert_allclose(ours, expected, rtol=1e-4)
    assert momentum == pytest.approx(0.81)


def test_a_layer_more_is_few_operations_more(ranks: Ranks) -> None:
    [operations] = ranks.run("recipes.operations_of_a_layer", 1)
    assert operations["LARS"] < 20
    assert operations["LAMB"] < operations["Lamb"] / 2


def test_what_cannot_be_is_refused(ranks: Ranks) -> None:
    [messages] = ranks.run("recipes.refusals", 1)
    for text, expected in zip(
        messages,
        [
            "LARS with a learning rate of -1",
            "betas (1.0, 0.999)",
            "LARS: kernel is bfloat16",
            "ScheduledRate with a rate of -1",
            "renorm=True",
            "synchronized=True",
        ],
        strict=True,
    ):
        assert expected in text
