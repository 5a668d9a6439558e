"""Measures a model for the automatic partition, on the traced graph of one microbatch; runs nothing.

bytes      variables with their gradients, and results of operations that the backward pass uses
seconds    each layer's own operations, forward and backward, estimated from their arithmetic and the bytes they touch
values     results of one layer that another layer uses, and whether a gradient comes back
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.ops import get_stats_for_node_def

from herringbone_parallel.core.partition.costs import CostNode, CostTree, Value, tree_of
from herringbone_parallel.core.partition.work import Device
from herringbone_parallel.tensorflow.model_parallel.placement.placement import Ranges
from herringbone_parallel.tensorflow.model_parallel.placement.trace import Traced

# A variable and its gradient. The optimizer's own variables are unknown while the first step is traced.
_COPIES_OF_TRAINABLE = 2


def layers_of(model: Any) -> dict[str, Any]:
    """Return a model's layers by their dotted paths, "" for the model; a layer used twice has its first path."""
    layers: dict[str, Any] = {"": model}
    seen = {id(model)}

    def walk(layer: Any, path: str) -> None:
        for inner in layer._layers:
            if id(inner) in seen:
                continue
            seen.add(id(inner))
            name = f"{path}.{inner.name}" if path else inner.name
            # Two layers of one parent may have the same name; the paths of a partition file must differ.
            number = 1
            while name in layers:
                number += 1
                name = f"{path}.{inner.name}#{number}" if path else f"{inner.name}#{number}"
            layers[name] = inner
            walk(inner, name)

    walk(model, "")
    return layers


def own_variables(layer: Any) -> list[Any]:
    """Return the variables of a layer itself, without those of its inner layers."""
    seeds = [generator.state for generator in layer._seed_generators]
    return [*layer._trainable_variables, *layer._non_trainable_variables, *seeds]


def measure(traced: Traced, layers: Mapping[str, Any], device: Device, live: int) -> CostTree:
    """Return the costs of a model when the activations of `live` microbatches are kept at once.

    tree = measure(traced, layers_of(model), CPU, live=4)
    """
    costs = _Costs(traced, layers, device)
    # A variable that two layers share has one number, so the partition search counts its memory once.
    variables = {id(v.handle): n for n, v in enumerate(v for layer in layers.values() for v in own_variables(layer))}
    nodes = {}
    for path, layer in layers.items():
        parameters = {}
        for variable in own_variables(layer):
            size = variable.shape.num_elements() * tf.as_dtype(variable.dtype).size
            copies = _COPIES_OF_TRAINABLE if variable.trainable else 1
            parameters[variables[id(variable.handle)]] = size * copies
        nodes[path] = CostNode(
            path=path,
            parameters=parameters,
            activation_bytes=costs.kept[path] * live,
            seconds=costs.seconds[path],
        )
    order = {path: number for number, path in enumerate(costs.order)}
    return CostTree(root=tree_of(nodes, order), link=device.link, values=tuple(costs.values()))


class _Costs:
    """Sums over the operations of a graph, for the layer that each operation belongs to."""

    def __init__(self, traced: Traced, layers: Mapping[str, Any], device: Device) -> None:
        self._graph, self._device = traced.graph, device
        self._operations = traced.graph.get_operations()
        self._path_of_layer = {id(layer): path for path, layer in layers.items()}
        # In reverse, so that a shared variable belongs to the first layer that has it.
        self._path_of_handle = {
            id(variable.handle): path
            for path, layer in reversed(list(layers.items()))
            for variable in own_variables(layer)
        }
        self._handles = {inner.name: id(outer) for outer, inner in traced.graph.captures if inner.dtype == tf.resource}
        self._gradients = Ranges(traced.gradients)
        self.seconds: dict[str, float] = defaultdict(float)
        self.kept: dict[str, int] = defaultdict(int)
        self.order: dict[str, None] = {}
        self._paths = self._path_of_each(traced)
        self._add_up()

    def values(self) -> Iterator[Value]:
        """Yield the values that pass from one layer to others."""
        users_of: dict[str, set[str]] = defaultdict(set)
        tensors = {}
        for number, operation in enumerate(self._operations):
            if number in self._gradients:
                continue
            for tensor in operation.inputs:
                source = self._paths.get(tensor.op.name)
                if source is not None and tensor.op.type != "Const" and source != self._paths[operation.name]:
                    users_of[tensor.name].add(self._paths[operation.name])
                    tensors[tensor.name] = tensor
        for name, users in users_of.items():
            size = _bytes(tensors[name])
            if size:
                back = size if tensors[name].dtype.is_floating else 0
                source = self._paths[tensors[name].op.name]
                yield Value(source=source, users=tuple(sorted(users)), forward_bytes=size, backward_bytes=back)

    def _path_of_each(self, traced: Traced) -> dict[str, str]:
        """Return the layer of each operation; a loop belongs to the layer whose variables it uses."""
        within: list[str] = [""] * len(self._operations)
        for stretch in traced.stretches:
            path = self._path_of_layer.get(id(stretch.layer))
            if path is not None:
                self.order.setdefault(path)
                within[stretch.start : stretch.end] = [path] * (stretch.end - stretch.start)
        paths: dict[str, str] = {}
        for number, operation in enumerate(self._operations):
            # TensorFlow marks the gradient of an operation with that operation, and both belong to one layer.
            original = getattr(operation, "_original_op", None) if number in self._gradients else None
            owners = [self._path_of_handle.get(self._handles.get(tensor.name, 0)) for tensor in operation.inputs]
            owner = next((path for path in owners if path is not None), None)
            path = within[number] if original is None else paths.get(original.name, "")
            paths[operation.name] = path if owner is None else owner
        return paths

    def _add_up(self) -> None:
        for number, operation in enumerate(self._operations):
            if operation.type in ("Const", "Placeholder", "NoOp", "ReadVariableOp"):
                continue
            path = self._paths[operation.name]
            touched = sum(map(_bytes, operation.inputs)) + sum(map(_bytes, operation.outputs))
            self.seconds[path] += self._device.seconds(self._flops(operation), touched)
            backward = number in self._gradients
            if not backward:
                for tensor in operation.outputs:
                    # The backward pass reads this tensor, so it stays in memory until then.
                    if any(self._is_gradient(user) for user in tensor.consumers()):
                        self.kept[path] += _bytes(tensor)

    def _is_gradient(self, operation: Any) -> bool:
        return getattr(operation, "_original_op", None) is not None

    def _flops(self, operation: Any) -> int:
        try:
            stats = get_stats_for_node_def(self._graph, operation.node_def, "flops")
        except ValueError:
            # TensorFlow raises where a shape is unknown before the step runs.
            return 0
        return int(stats.value or 0)


def _bytes(tensor: Any) -> int:
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or tensor.shape.rank is None:
        return 0
    size = tensor.dtype.size
    for extent in tensor.shape.as_list():
        size *= 1 if extent is None else extent
    return int(size)
