from __future__ import annotations

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.recipes.layerwise import is_matrix, require_lamb, require_lars


def test_shifts_and_scales_are_no_matrices() -> None:
    results = [
        is_matrix(*arguments)
        for arguments in [(4, "conv/kernel"), (2, ""), (1, "x"), (0, ""), (2, "bias:0"), (2, "norm/gamma")]
    ]
    assert results == [True, True, False, False, False, False]


@pytest.mark.parametrize("wrong", [{"rate": -1}, {"momentum": 1.0}, {"weight_decay": -0.1}, {"trust": 0}])
def test_lars_refuses_invalid_settings_and_names_all(wrong: dict[str, float]) -> None:
    settings = {"rate": 0.5, "momentum": 0.9, "weight_decay": 0.1, "trust": 0.001}
    require_lars(**settings)
    with pytest.raises(ParallelError, match=f"LARS with .*{next(iter(wrong.values()))}"):
        require_lars(**{**settings, **wrong})


@pytest.mark.parametrize("wrong", [{"rate": float("nan")}, {"betas": (0.9, 1.0)}, {"epsilon": 0}])
def test_lamb_refuses_invalid_settings(wrong: dict[str, object]) -> None:
    settings = {"rate": 0.5, "betas": (0.9, 0.99), "epsilon": 1e-6, "weight_decay": 0.1}
    require_lamb(**settings)
    with pytest.raises(ParallelError, match="LAMB with a learning rate of"):
        require_lamb(**{**settings, **wrong})
