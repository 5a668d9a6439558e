"""Turns a traced graph into nodes that can be placed and cut: the partition of operations, the owner of variables."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.dataflow import EVERYWHERE, Node
from herringbone_parallel.tensorflow.model_parallel.placement.trace import Stretch, Traced

# Operations on variables that change nothing: they need not run if no other operation uses their result.
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"})

# Returns the partition of a stretch of operations, or None where none was requested.
PartitionOf = Callable[[Stretch], "int | None"]


class Placement:
    """The partition requested for each operation of a traced graph, and the owner of each variable that it uses.

    placement = Placement(traced, partition_of, known, members, default=0)
    owners = assign_ranks(placement.nodes(), default=0)

    `partition_of` gives the partition of a stretch. `known` are the owners of variables that were settled before, by
    the `id` of their handles. `members` are the handles of the model's variables; other variables are on every rank.
    """

    def __init__(
        self, traced: Traced, partition_of: PartitionOf, known: Mapping[int, int], members: set[int], default: int
    ) -> None:
        self._traced, self._default = traced, default
        created = traced.graph.get_operations()
        self._created = {operation.name: number for number, operation in enumerate(created)}
        # A loop's gradient gives the loop further inputs that were created later. The order of creation is therefore
        # not an order in which operations can run.
        self.operations = _ordered(created)
        self.number_of = {operation.name: number for number, operation in enumerate(self.operations)}
        self._requested = self._requested_of_each(partition_of)
        self.handles = {inner.name: outer for outer, inner in traced.graph.captures if inner.dtype == tf.resource}
        self.owners: dict[int, int] = {**known, **self._owners_of_new(known, members)}

    def nodes(self) -> list[Node]:
        """Return each of `operations` as a node that `core.pipeline.dataflow` can cut."""
        self._given = {tensor.op.name for tensor in self._traced.graph.inputs}
        self._captured = {inner.op.name for _, inner in self._traced.graph.captures}
        computes_gradients = Ranges(self._traced.gradients)
        backward = {name for name, number in self._created.items() if number in computes_gradients}
        for operation in self.operations:
            # A forward operation may need operations that the gradient of a loop created. They run forward too.
            if operation.name not in backward:
                backward -= self._created_for(operation)
        return [self._node(operation, operation.name in backward) for operation in self.operations]

    def _created_for(self, operation: Any) -> set[str]:
        """Return the operations that an operation needs, directly or not, and that were created after it."""
        later: set[str] = set()
        waiting = [operation]
        while waiting:
            user = waiting.pop()
            for tensor in user.inputs:
                is_later = self._created[tensor.op.name] > self._created[operation.name]
                if is_later and tensor.op.name not in later:
                    later.add(tensor.op.name)
                    waiting.append(tensor.op)
        return later

    def _node(self, operation: Any, backward: bool) -> Node:
        is_argument = operation.name in self._given
        original = getattr(operation, "_original_op", None) if backward else None
        return Node(
            inputs=tuple((self.number_of[tensor.op.name], tensor.value_index) for tensor in operation.inputs),
            waits=tuple(self._waits(operation)),
            assigned=self._requested[self._created[operation.name]],
            state_rank=None if is_argument else self._bound(operation),
            backward_of=None if original is None else self.number_of.get(original.name),
            backward=backward,
            constant=is_argument or operation.type in ("Const", "NoOp"),
            available=is_argument,
            captured=operation.name in self._captured,
            effect=not is_argument and operation.op_def.is_stateful and operation.type not in _READS,
        )

    def _waits(self, operation: Any) -> set[int]:
        numbers: set[int] = set()
        for before in operation.control_inputs:
            # A NoOp only gathers other operations. To wait for those keeps it out of the cut.
            numbers |= self._waits(before) if before.type == "NoOp" else {self.number_of[before.name]}
        return numbers if operation.type != "Identity" else set()

    def _bound(self, operation: Any) -> int | None:
        owners: dict[int, str] = {}
        for tensor in operation.inputs:
            handle = self.handles.get(tensor.name)
            if handle is not None:
                owners.setdefault(self.owners.get(id(handle), EVERYWHERE), tensor.op.name)
        # A variable that every rank has is also on the rank of the other variables.
        owners.pop(EVERYWHERE, None) if len(owners) > 1 else None
        if len(owners) > 1:
            raise _several_partitions(operation, owners)
        return next(iter(owners), None)

    def _requested_of_each(self, partition_of: PartitionOf) -> list[int | None]:
        """Return for each operation the partition of the innermost stretch around it."""
        of_stretch: list[int | None] = []
        of_operation: list[int | None] = [None] * len(self._created)
        for stretch in self._traced.stretches:
            requested = partition_of(stretch)
            of_stretch.append(
                requested if requested is not None or stretch.outer is None else of_stretch[stretch.outer]
            )
            # Inner stretches come later in the list, and overwrite their part.
            for number in range(stretch.start, stretch.end):
                of_operation[number] = of_stretch[-1]
        return of_operation

    def _owners_of_new(self, known: Mapping[int, int], members: set[int]) -> dict[int, int]:
        """Return owners of new variables: the requested partition of their first such user, else the default."""
        owners: dict[int, int] = {}
        used: set[int] = set()
        for operation in self._traced.graph.get_operations():
            for tensor in operation.inputs:
                handle = self.handles.get(tensor.name)
                if handle is not None and id(handle) in members and id(handle) not in known:
                    used.add(id(handle))
                    partition = self._requested[self._created[operation.name]]
                    if partition is not None:
                        owners.setdefault(id(handle), partition)
        return {**dict.fromkeys(used, self._default), **owners}


def _ordered(operations: Sequence[Any]) -> list[Any]:
    """Sort operations so that each one follows those that it needs, and otherwise stays in order of creation."""
    ordered: dict[str, Any] = {}
    for wanted in operations:
        # A stack of its own: a recursion over a deep graph would exceed Python's limit.
        waiting = [wanted]
        while waiting:
            operation = waiting[-1]
            needs = [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
            missing = [before for before in needs if before.name not in ordered]
            if missing:
                waiting += missing
            else:
                ordered.setdefault(operation.name, operation)
                waiting.pop()
    return list(ordered.values())


class Ranges:
    """Says whether a number lies in one of several ranges.

    >>> 3 in Ranges([(1, 4)]), 4 in Ranges([(1, 4)])
    (True, False)
    """

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = sorted(ranges)
        self._starts = [start for start, _ in self._ranges]

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._starts, number) - 1
        return index >= 0 and number < self._ranges[index][1]


def _several_partitions(operation: Any, owners: Mapping[int, str]) -> ParallelError:
    variables = ", ".join(f"{name.rsplit('/', 1)[0]!r} on partition {owner}" for owner, name in sorted(owners.items()))
    kinds = {"While": "a tf.while_loop", "StatelessWhile": "a tf.while_loop", "If": "a tf.cond"}
    kind = kinds.get(operation.type, "a tf.function, or one operation,")
    return ParallelError(
        f"{kind} ({operation.name!r}) uses variables of several partitions: {variables}. It runs on one rank as a"
        " whole. Put all its layers into one `with smp.partition(...)`, or call them outside of it."
    )
