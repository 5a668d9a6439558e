"""Small measured steps for tests, written by hand."""

from __future__ import annotations

from typing import Any

from herringbone_parallel.core.partition.costs import CostNode, CostTree, Link, Value
from herringbone_parallel.core.prediction.measurement import (
    Call,
    Kind,
    Measurement,
    Module,
    Operation,
    Parameter,
    Phase,
    Tensor,
)

F, B, O = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER  # noqa: E741
FIRST, SECOND = 1, 2


def two_layers(wrapper: str = "DistributedDataParallel", **changes: Any) -> Measurement:
    """Return a step of two layers of 1,000 and 3,000 bytes, with activations of 100 and 200 bytes, under Adam.

    moment   0 first  1 second  2 loss  3 second  4 first  5, 6 updates
    """
    modules = (Module("", "Net"), Module("first", "Linear", unit=True), Module("second", "Linear", unit=True))
    parameters = (
        Parameter("first.weight", FIRST, (10, 25), "float32", 1000, state_bytes=2000),
        Parameter("second.weight", SECOND, (30, 25), "float32", 3000, state_bytes=6000),
    )
    calls = ((FIRST, F), (SECOND, F), (0, F), (SECOND, B), (FIRST, B), (FIRST, O), (SECOND, O))
    tensors = (
        Tensor(1000, Kind.PARAMETER, -1, -1, FIRST),
        Tensor(3000, Kind.PARAMETER, -1, -1, SECOND),
        Tensor(2000, Kind.STATE, -1, -1, FIRST),
        Tensor(6000, Kind.STATE, -1, -1, SECOND),
        Tensor(40, Kind.INPUT, -1, -1, 0),
        Tensor(100, Kind.ACTIVATION, 0, 5, FIRST),
        Tensor(200, Kind.ACTIVATION, 1, 4, SECOND),
        Tensor(8, Kind.TEMPORARY, 2, 3, 0),
        Tensor(3000, Kind.GRADIENT, 3, -1, SECOND),
        Tensor(1000, Kind.GRADIENT, 4, -1, FIRST),
        Tensor(1000, Kind.TEMPORARY, 5, 6, FIRST),
        Tensor(3000, Kind.TEMPORARY, 6, 7, SECOND),
    )
    tree = CostTree(
        root=CostNode(
            path="",
            children=(
                CostNode(path="first", parameters={1: 4000}, activation_bytes=100, seconds=1.0),
                CostNode(path="second", parameters={2: 12000}, activation_bytes=200, seconds=1.0),
            ),
        ),
        link=Link(bytes_per_second=1e9),
        values=(Value(source="first", users=("second",), forward_bytes=100, backward_bytes=100),),
    )
    members: dict[str, Any] = {
        "framework": "torch 2.13.0",
        "device": "cpu",
        "batch": 8,
        "wrapper": wrapper,
        "tree": tree,
        "modules": modules,
        "parameters": parameters,
        "operations": (Operation("aten.mm.default", (), "float32", 1000, 1000),),
        "calls": tuple(Call(0, module, phase) for module, phase in calls),
        "tensors": tensors,
    }
    return Measurement(**(members | changes))
