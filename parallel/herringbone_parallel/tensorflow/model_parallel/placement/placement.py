"""From a traced graph to nodes that can be placed and cut: who owns each variable, what was told where to run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.dataflow import EVERYWHERE, Node
from herringbone_parallel.tensorflow.model_parallel.placement.trace import Stretch, Traced

# Operations on variables that change nothing: they need not run if nobody uses what they read.
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"})

# The partition of a stretch of operations, or None where nothing was said.
Told = Callable[[Stretch], "int | None"]


class Placement:
    """What each operation of a traced graph was told, and who owns each variable that it uses.

    placement = Placement(traced, told, owners, default=0)
    owners = assign_ranks(placement.nodes(), default=0)

    `told` gives the partition of a stretch; `known` are the owners of variables that were settled before, by the `id`
    of their handles; `members` the handles of the model's variables. Others are on every rank.
    """

    def __init__(self, traced: Traced, told: Told, known: Mapping[int, int], members: set[int], default: int) -> None:
        self._traced, self._default = traced, default
        created = traced.graph.get_operations()
        self._created = {operation.name: number for number, operation in enumerate(created)}
        # Behind what it needs: a loop's gradient gives the loop further inputs, which were created later.
        self.operations = _ordered(created)
        self.number_of = {operation.name: number for number, operation in enumerate(self.operations)}
        self._told = self._told_of_each(told)
        self.handles = {inner.name: outer for outer, inner in traced.graph.captures if inner.dtype == tf.resource}
        self.owners: dict[int, int] = {**known, **self._owners_of_new(known, members)}

    def nodes(self) -> list[Node]:
        """Return what each of `operations` is to a cut."""
        self._given = {tensor.op.name for tensor in self._traced.graph.inputs}
        self._captured = {inner.op.name for _, inner in self._traced.graph.captures}
        computes_gradients = Within(self._traced.gradients)
        backward = {name for name, number in self._created.items() if number in computes_gradients}
        for operation in self.operations:
            if operation.name not in backward:
                backward -= self._created_for(operation)
        return [self._node(operation, operation.name in backward) for operation in self.operations]

    def _created_for(self, operation: Any) -> set[str]:
        """Return what was created after an operation that needs it, and what that needs."""
        found: set[str] = set()
        waiting = [operation]
        while waiting:
            after = waiting.pop()
            for tensor in after.inputs:
                late = self._created[tensor.op.name] > self._created[operation.name]
                if late and tensor.op.name not in found:
                    found.add(tensor.op.name)
                    waiting.append(tensor.op)
        return found

    def _node(self, operation: Any, backward: bool) -> Node:
        given = operation.name in self._given
        original = getattr(operation, "_original_op", None) if backward else None
        return Node(
            inputs=tuple((self.number_of[tensor.op.name], tensor.value_index) for tensor in operation.inputs),
            waits=tuple(self._waits(operation)),
            assigned=self._told[self._created[operation.name]],
            state_rank=None if given else self._bound(operation),
            backward_of=None if original is None else self.number_of.get(original.name),
            backward=backward,
            constant=given or operation.type in ("Const", "NoOp"),
            available=given,
            captured=operation.name in self._captured,
            effect=not given and operation.op_def.is_stateful and operation.type not in _READS,
        )

    def _waits(self, operation: Any) -> set[int]:
        found: set[int] = set()
        for before in operation.control_inputs:
            # One that only gathers others.
            found |= self._waits(before) if before.type == "NoOp" else {self.number_of[before.name]}
        return found if operation.type != "Identity" else set()

    def _bound(self, operation: Any) -> int | None:
        owners: dict[int, str] = {}
        for tensor in operation.inputs:
            handle = self.handles.get(tensor.name)
            if handle is not None:
                owners.setdefault(self.owners.get(id(handle), EVERYWHERE), tensor.op.name)
        owners.pop(EVERYWHERE, None) if len(owners) > 1 else None
        if len(owners) > 1:
            raise _cut_inside(operation, owners)
        return next(iter(owners), None)

    def _told_of_each(self, told: Told) -> list[int | None]:
        """Give each operation what the innermost stretch around it says."""
        said: list[int | None] = []
        result: list[int | None] = [None] * len(self._created)
        for stretch in self._traced.stretches:
            own = told(stretch)
            said.append(own if own is not None or stretch.outer is None else said[stretch.outer])
            # Inner stretches come later, and overwrite their part.
            for number in range(stretch.start, stretch.end):
                result[number] = said[-1]
        return result

    def _owners_of_new(self, known: Mapping[int, int], members: set[int]) -> dict[int, int]:
        """A variable is where the first operation that uses it was told to run, if any was, else on the default."""
        found: dict[int, int] = {}
        used: set[int] = set()
        for operation in self._traced.graph.get_operations():
            for tensor in operation.inputs:
                handle = self.handles.get(tensor.name)
                if handle is not None and id(handle) in members and id(handle) not in known:
                    used.add(id(handle))
                    told = self._told[self._created[operation.name]]
                    if told is not None:
                        found.setdefault(id(handle), told)
        return {**dict.fromkeys(used, self._default), **found}


def _ordered(operations: Sequence[Any]) -> list[Any]:
    """Sort operations so that each comes behind what it needs, else as they were created."""
    found: dict[str, Any] = {}
    for wanted in operations:
        waiting = [wanted]
        while waiting:
            operation = waiting[-1]
            needs = [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
            missing = [before for before in needs if before.name not in found]
            if missing:
                waiting += missing
            else:
                found.setdefault(operation.name, operation)
                waiting.pop()
    return list(found.values())


class Within:
    """Whether a number lies in one of these ranges."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = sorted(ranges)
        self._starts = [start for start, _ in self._ranges]

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._starts, number) - 1
        return place >= 0 and number < self._ranges[place][1]


def _cut_inside(operation: Any, owners: Mapping[int, str]) -> ParallelError:
    where = ", ".join(f"{name.rsplit('/', 1)[0]!r} on partition {owner}" for owner, name in sorted(owners.items()))
    what = {"While": "a tf.while_loop", "StatelessWhile": "a tf.while_loop", "If": "a tf.cond"}
    kind = what.get(operation.type, "a tf.function, or one operation,")
    return ParallelError(
        f"{kind} ({operation.name!r}) uses variables of several partitions: {where}. It runs on one rank as a whole."
        " Put all its layers into one `with smp.partition(...)`, or call them outside of it."
    )
