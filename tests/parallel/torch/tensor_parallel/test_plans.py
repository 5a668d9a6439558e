"""The plan of a model, and what is refused in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.tensor_parallel.plans import Kind, Style, styles


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 4)


class Model(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        for name, value in attributes.items():
            setattr(self, name, value)


PLAN = {"layers.*.fc1": "colwise", "layers.*.fc2": "rowwise"}
SHARED = {
    "layers.0.fc1": Kind.COLWISE, "layers.1.fc1": Kind.COLWISE,
    "layers.0.fc2": Kind.ROWWISE, "layers.1.fc2": Kind.ROWWISE,
}  # fmt: skip


def kinds(found: dict[str, Style]) -> dict[str, Kind]:
    return {name: style.kind for name, style in found.items()}


def test_the_user_s_plan_names_modules_by_patterns() -> None:
    assert kinds(styles(Model(), PLAN)) == SHARED


def test_the_model_s_own_plan_is_found() -> None:
    assert kinds(styles(Model(_tp_plan=PLAN))) == SHARED


def test_the_plan_of_a_configuration_starts_at_the_base_model() -> None:
    config = SimpleNamespace(base_model_tp_plan=PLAN, model_type="new")
    whole = nn.Module()
    whole.config, whole.base_model_prefix, whole.model = config, "model", Model()  # type: ignore[assignment]
    assert kinds(styles(whole)) == {f"model.{name}": kind for name, kind in SHARED.items()}


def test_the_user_s_plan_comes_before_the_model_s() -> None:
    assert kinds(styles(Model(_tp_plan=PLAN), {"layers.0.fc1": "colwise_rep"})) == {"layers.0.fc1": Kind.COLWISE_GATHER}


def test_torch_s_layers_have_a_plan() -> None:
    found = kinds(styles(nn.TransformerDecoderLayer(8, 2, 16)))
    assert found == {
        "self_attn": Kind.ATTENTION, "multihead_attn": Kind.ATTENTION,
        "linear1": Kind.COLWISE, "linear2": Kind.ROWWISE,
    }  # fmt: skip


def test_a_model_without_a_plan_is_told_how_to_write_one() -> None:
    with pytest.raises(ParallelError, match=r"no tensor-parallel plan for Model: .*'layers\.\*\.fc\*': 'colwise'"):
        styles(Model())


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"layers.*.fc3": "colwise"}, r"no module of the model is named 'layers\.\*\.fc3'"),
        ({"layers.*.fc1": "columnwise"}, r"'columnwise', the tensor-parallel style of 'layers\.\*\.fc1', is no style"),
        ({"layers.*.fc1": "colwise:2"}, r"only packed_colwise takes a number"),
        ({"layers.*.fc1": "sequence_parallel"}, r"'sequence_parallel' of 'layers\.\*\.fc1' is not available"),
        ({"layers.*.fc1": "ep_dispatch_experts"}, r"it is for experts"),
        ({"layers.*.fc1": "moe_tp_experts"}, r"it is for experts"),
    ],
)
def test_what_is_not_served_is_refused_by_name(plan: dict[str, str], message: str) -> None:
    with pytest.raises(ParallelError, match=message):
        styles(Model(), plan)
