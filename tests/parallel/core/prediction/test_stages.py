"""The partitions of a measured step."""

import pytest

pytest.importorskip("numpy")

from msgspec.structs import replace
from tests.parallel.core.prediction.steps import two_layers

from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_parallel.core.partition.costs import CostNode
from herringbone_parallel.core.prediction.layout import Layout, Library
from herringbone_parallel.core.prediction.measurement import Call, Module, Parameter, Phase
from herringbone_parallel.core.prediction.stages import SEVERAL, Stages


def test_every_rank_sees_modules_of_one_partition_and_operations_outside() -> None:
    names = ("", "a", "a.x", "a.y", "b")
    leaves = {name: CostNode(path=name, parameters={n: 64}, seconds=1.0) for n, name in enumerate(names[2:])}
    halves = CostNode(path="a", children=(leaves["a.x"], leaves["a.y"]))
    step = two_layers()
    assert step.tree is not None
    measured = replace(
        step,
        modules=tuple(Module(name, "Module") for name in names),
        parameters=tuple(Parameter(name, names.index(name), (4, 4), "float32", 64) for name in leaves),
        # In "a" and its parts, outside, in "b", and twice outside.
        calls=tuple(Call(0, names.index(name), Phase.FORWARD) for name in ("a", "a.x", "a.x", "a", "", "b", "", "")),
        tensors=(),
        tree=replace(
            step.tree,
            root=CostNode(path="", children=(halves, replace(leaves["b"], seconds=2.0, parameters={2: 128}))),
            values=(),
        ),
    )
    partition = Stages(measured).of(Layout(mesh=Mesh(pipeline=2), library=Library.VERSION1))
    assert partition.modules.tolist() == [SEVERAL, 0, 0, 0, 1]
    assert partition.seen == 5
