"""Converts a decision to the format of `herringbone_contract.model_parallel.partition_file`."""

from __future__ import annotations

from herringbone_contract.model_parallel.partition_file import ModuleAssignment, PartitionFile
from herringbone_parallel.core.partition.costs import CostTree
from herringbone_parallel.core.partition.decide import Decision


def record(tree: CostTree, decision: Decision) -> PartitionFile:
    """Return the partition file of a decision about a cost tree.

        text = partition_file.to_text(record(tree, decide(tree, 2, memory_weight=0.8)))

    Each module's entry repeats its costs, so that a reader needs no cost tree to understand the file.
    """
    return PartitionFile(
        partitions=len(decision.loads),
        memory_weight=decision.memory_weight,
        memory_cap=decision.memory_cap,
        method=decision.method,
        bound=decision.bound,
        certificate=decision.certificate,
        loads=decision.loads,
        modules=tuple(
            ModuleAssignment(
                path=node.path,
                partition=decision.assigned.get(node.path),
                parameter_bytes=sum(node.parameters.values()),
                activation_bytes=node.activation_bytes,
                seconds=node.seconds,
            )
            for node in tree.root.walk()
        ),
    )
