from __future__ import annotations

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.recipes.layerwise import is_matrix, require_lamb, require_lars


def test_what_shifts_or_scales_is_no_matrix() -> None:
    found = [
        is_matrix(*given)
        for given in [(4, "conv/kernel"), (2, ""), (1, "x"), (0, ""), (2, "bias:0"), (2, "norm/gamma")]
    ]
    assert found == [True, True, False, False, False, False]


@pytest.mark.parametrize("wrong", [{"rate": -1}, {"momentum": 1.0}, {"weight_decay": -0.1}, {"trust": 0}])
def test_what_lars_cannot_have_is_refused_with_all_that_was_given(wrong: dict[str, float]) -> None:
    given = {"rate": 0.5, "momentum": 0.9, "weight_decay": 0.1, "trust": 0.001}
    require_lars(**given)
    with pytest.raises(ParallelError, match=f"LARS with .*{next(iter(wrong.values()))}"):
        require_lars(**{**given, **wrong})


@pytest.mark.parametrize("wrong", [{"rate": float("nan")}, {"betas": (0.9, 1.0)}, {"epsilon": 0}])
def test_what_lamb_cannot_have_is_refused(wrong: dict[str, object]) -> None:
    given = {"rate": 0.5, "betas": (0.9, 0.99), "epsilon": 1e-6, "weight_decay": 0.1}
    require_lamb(**given)
    with pytest.raises(ParallelError, match="LAMB with a learning rate of"):
        require_lamb(**{**given, **wrong})
