"""Traces a step function once, on one microbatch, into one graph, and notes the layer of each operation.

The graph is the whole computation, forward and backward, and the same on every rank. Variables that the model creates
during the trace get a handle and a shape, and no memory: `placement.owners` decides later which rank holds them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph, func_graph_from_py_func
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.library_hooks import READING_METHODS
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.state import DeferredVariable, SplitModel
from herringbone_parallel.tensorflow.model_parallel.unsupported import refuse_dynamic_scale, refuse_update
from herringbone_parallel.tensorflow.patches import Patches, defining_class

# The starts of the types of operations that change a variable.
_UPDATES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter")

_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})


@dataclass(slots=True)
class Stretch:
    """The operations from `start` up to `end` of the graph, which belong to a layer or to a `with smp.partition`.

    `partition` is that of the innermost `with` around it; `outer` is the number of the stretch around it.
    """

    start: int
    outer: int | None
    layer: Any = None
    partition: int | None = None
    end: int = -1


@dataclass(slots=True)
class Traced:
    """Result of a trace; stretches are in the order of their starts."""

    graph: Any
    deferred: list[DeferredVariable]
    outputs: list[Any] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    # Starts and ends of the operations that compute gradients.
    gradients: list[tuple[int, int]] = field(default_factory=list)
    # The variable that a tensor, by its name, is the gradient of.
    gradient_of: dict[str, Any] = field(default_factory=dict)
    # Variables that were created inside a layer, with memory or without.
    made_in_layers: list[Any] = field(default_factory=list)


class _Recorder:
    """Records one trace; undoes all its patches when the trace ends."""

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        # The numbers of the stretches that have started and not ended, innermost last.
        self._open: list[int] = []

    @contextmanager
    def stretch(self, *, layer: Any = None, partition: int | None = None) -> Iterator[None]:
        """Record the operations of the `with` block as a stretch."""
        graph, stretches = self._traced.graph, self._traced.stretches
        if tf.compat.v1.get_default_graph() is not graph:
            # Inside a loop or a branch, whose operations are in a graph of their own: the cut sees it as one operation.
            yield
            return
        outer = self._open[-1] if self._open else None
        stretches.append(Stretch(count(graph), outer, layer, self.partition if partition is None else partition))
        self._open.append(len(stretches) - 1)
        try:
            yield
        finally:
            stretches[self._open.pop()].end = count(graph)

    @property
    def partition(self) -> int | None:
        """Return the innermost open partition."""
        for number in reversed(self._open):
            partition = self._traced.stretches[number].partition
            if partition is not None:
                return partition
        return None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Patch Keras and TensorFlow so that this recorder sees layers, gradients and scaled losses."""
        global _recorder
        call, gradients, gradient = keras.layers.Layer.__call__, tf.gradients, tf.GradientTape.gradient
        recorder = self

        def watched_call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            with recorder.stretch(layer=layer):
                return call(layer, *args, **kwargs)

        def watched_gradients(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
            return recorder.gradients(gradients, ys, xs, args, kwargs)

        # `tf.gradients` marks each operation with the one whose gradient it computes (`_original_op`). The placement
        # reads these marks, so a tape must use it, too.
        def gradient_in_graph(
            tape: Any, target: Any, sources: Any, output_gradients: Any = None, unconnected_gradients: Any = None
        ) -> Any:
            if tf.compat.v1.get_default_graph() is not recorder._traced.graph:
                more = {} if unconnected_gradients is None else {"unconnected_gradients": unconnected_gradients}
                return gradient(tape, target, sources, output_gradients, **more)
            kwargs = {
                "grad_ys": None if output_gradients is None else tf.nest.flatten(output_gradients),
                "unconnected_gradients": unconnected_gradients or tf.UnconnectedGradients.NONE,
            }
            flat = recorder.gradients(gradients, tf.nest.flatten(target), tf.nest.flatten(sources), (), kwargs)
            return tf.nest.pack_sequence_as(sources, flat)

        def refused_apply(optimizer: Any, *_: Any, **__: Any) -> Any:
            refuse_update(f"{type(optimizer).__name__}.apply_gradients")

        def refused_scale(optimizer: Any, _: Any) -> Any:
            refuse_dynamic_scale(optimizer, "scale_loss")

        patches = Patches()
        before, _recorder = _recorder, self
        with state.tracing():
            try:
                patches.set(keras.layers.Layer, "__call__", watched_call)
                patches.set(tf, "gradients", watched_gradients)
                patches.set(tf.GradientTape, "gradient", gradient_in_graph)
                patches.set(keras.optimizers.LossScaleOptimizer, "scale_loss", refused_scale)
                # `apply_gradients` calls it.
                patches.set(defining_class(keras.optimizers.Optimizer, "apply"), "apply", refused_apply)
                yield
            finally:
                _recorder = before
                patches.undo()

    def gradients(self, compute: Any, ys: Any, xs: Any, args: Any, kwargs: Any) -> list[Any]:
        """Compute gradients in the graph, and remember the variable of each."""
        graph = self._traced.graph
        self._refuse_unscaled(ys)
        sources = [variable_of(source) for source in tf.nest.flatten(xs)]
        start = count(graph)
        gradients: list[Any] = compute(ys, sources, *args, **kwargs)
        # Variables that are added up have one tensor as their gradient; each needs a name of its own.
        gradients = [
            tf.identity(gradient)
            if any(gradient is earlier is not None for earlier in gradients[:number])
            else gradient
            for number, gradient in enumerate(gradients)
        ]
        self._traced.gradients.append((start, count(graph)))
        for source, gradient in zip(sources, gradients, strict=True):
            if gradient is not None and isinstance(source, tf.Variable):
                for part in tf.nest.flatten(gradient, expand_composites=True):
                    self._traced.gradient_of[part.name] = source
        return gradients

    def _refuse_unscaled(self, ys: Any) -> None:
        """Raise `ParallelError` for float16 without a scaled loss: most gradients would round to 0."""
        halves = [s.layer for s in self._traced.stretches if getattr(s.layer, "compute_dtype", None) == "float16"]
        if halves and any(tensor.op.type != "Mul" for tensor in tf.nest.flatten(ys)):
            raise ParallelError(
                f"layer {halves[0].name!r} computes in float16, and the gradients are of a loss that is not scaled:"
                " most of them would be 0. Take those of optimizer.scale_loss(loss), with a scale that is fixed:"
                " keras.optimizers.Adam(loss_scale_factor=1024); or use the policy 'mixed_bfloat16', which needs none."
            )

    def make_variable(self, make: Callable[..., Any], **how: Any) -> Any:
        """Create a variable for TensorFlow's `variable_creator_scope`."""
        variable = self._make_variable(make, how)
        if self._open:
            self._traced.made_in_layers.append(variable)
        return variable

    def _make_variable(self, make: Callable[..., Any], how: dict[str, Any]) -> Any:
        """Create a variable, without memory if its first value can be computed later."""
        initial_value = how.get("initial_value")
        if not callable(initial_value):
            return make(**how)
        dtype = how.get("dtype")
        try:
            # In a graph of its own the initial value costs no memory, and shows its shape and type.
            with tf.Graph().as_default():
                sample = tf.convert_to_tensor(initial_value(), dtype=dtype)
        except Exception:  # noqa: BLE001  the value needs tensors of another graph, so it is computed now
            return make(**how)
        variable = without_memory(how, sample.shape, sample.dtype)
        self._traced.deferred.append(DeferredVariable(variable, initial_value))
        return variable


_recorder: _Recorder | None = None


def recorder() -> _Recorder | None:
    """Return the recorder of the current trace, None outside of a trace."""
    return _recorder


def count(graph: Any) -> int:
    """Return the number of operations in a graph."""
    return len(graph.get_operations())


def _is_elsewhere(variable: Any) -> bool:
    """Say whether another rank holds a variable of the model; in a step, all variables are those of every rank."""
    return state.is_initialized() and not state.is_tracing() and not state.get().may_read(variable)


def _refused_elsewhere(name: str) -> Callable[..., Any]:
    """Return a method of TensorFlow's variables that a rank may call for the weights that it holds."""
    read = getattr(UninitializedVariable, name)

    @functools.wraps(read)
    def checked(variable: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_elsewhere(variable):
            raise ParallelError(
                f"{variable.name} is a weight of another rank, and this rank has no value of it. A script may use the"
                " weights of its own rank, model.variables. The whole model predicts by model.predict of the"
                " smp.DistributedModel, or in a function under @smp.step; and it is saved by model.save_model(folder),"
                " model.save_weights(path), or smp.CheckpointManager"
            )
        return read(variable, *args, **kwargs)

    return checked


class _HeldVariable(UninitializedVariable):
    """A variable whose value one rank holds: TensorFlow would read nothing elsewhere, and raise no error."""

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assign a value, or do nothing on other ranks: a script may set all weights of the model on each."""
        return self if _is_elsewhere(self) else super().assign(value, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<tf.Variable {self.name!r} shape={self.shape} dtype={self.dtype.name}>"


for _name in READING_METHODS:
    # Checkpoints, too, leave out a variable without a value.
    setattr(_HeldVariable, _name, _refused_elsewhere(_name))


def fill(variable: Any, value: Any) -> None:
    """Give a variable without memory a value; `release` takes the memory back."""
    # Unlike the method `assign`, the operation accepts that the variable is empty before.
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.convert_to_tensor(value, variable.dtype))


def release(variable: Any) -> None:
    """Free the memory of a variable, also where a traced function of the script keeps its handle."""
    # `DestroyResourceOp` does nothing to the variables of eager code: TensorFlow counts references to them.
    fill(variable, tf.zeros([0], variable.dtype))


def without_memory(like: Any, shape: Any, dtype: Any) -> Any:
    """Return a variable that has a handle, a shape and a type, and no memory until it is assigned a value.

    The other properties come from `like`: another variable, or a dict of the arguments to create it with.
    """
    names = ("name", "trainable", "constraint", "synchronization", "aggregation")
    how = {name: like.get(name) if isinstance(like, dict) else getattr(like, name) for name in names}
    # A variable's name ends in ":0", which its constructor refuses.
    how["name"] = how["name"] and how["name"].partition(":")[0]
    return _HeldVariable(shape=shape, dtype=dtype, **how)


def variable_of(source: Any) -> Any:
    """Return TensorFlow's variable inside a Keras variable, and any other object unchanged."""
    return source.value if isinstance(source, keras.Variable) else source


def trace(
    body: Callable[..., Any],
    specs: Sequence[Any],
    *,
    name: str,
    deferred: list[DeferredVariable],
) -> Traced:
    """Run `body` on placeholders of these specs, in a graph of its own, and return the recorded trace.

        traced = trace(lambda images, labels: [...], [tf.TensorSpec((16, 28, 28, 1)), ...], name="step", deferred=[])

    `body` returns a flat list of tensors, which are the graph's outputs. Variables that it creates without memory are
    added to `deferred`. That also happens when it fails, because their layers keep them.
    """
    graph = FuncGraph(name)
    traced = Traced(graph, deferred=deferred)
    new_recorder = _Recorder(traced)
    # `init_scope` leaves the graph of the user's `tf.function`, so that this graph captures nothing of it.
    with tf.init_scope(), new_recorder.watching(), tf.variable_creator_scope(new_recorder.make_variable):
        try:
            func_graph_from_py_func(name, tf.autograph.experimental.do_not_convert(body), specs, {}, func_graph=graph)
        except (TypeError, ValueError) as error:
            # TensorFlow has no error class for this case; these words are in its messages.
            if "out of scope" in str(error) or "inaccessible" in str(error):
                raise ParallelError(
                    f"the step uses a tensor of the function around it: pass it as an argument ({error})"
                ) from error
            raise
    traced.outputs = list(graph.outputs)
    return traced


def refuse_assignments(traced: Traced, model: SplitModel, microbatches: int) -> None:
    """Raise `ParallelError` for a step that assigns to a trained variable of the model.

    With one microbatch a layer may change its own weight, as one with a spectral norm does.
    """
    trained = {id(variable.handle): variable.path for variable in model.all_variables() if variable.trainable}
    captures = traced.graph.captures
    names = {inner.op.name: trained[id(handle)] for handle, inner in captures if id(handle) in trained}
    operations = traced.graph.get_operations()
    inside = {operations[n].name for s in traced.stretches if s.layer is not None for n in range(s.start, s.end)}
    definition = traced.graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    by_layer = [[node for node in definition.node if (node.name in inside) is is_inside] for is_inside in (False, True)]
    updated, updated_inside = (_updated(nodes, names, functions) for nodes in by_layer)
    if updated is not None:
        refuse_update(f"an assignment to {updated!r}")
    if updated_inside is not None and microbatches > 1:
        raise ParallelError(
            f"the layer of {updated_inside!r} assigns to this weight in its call, which runs once for each of"
            f" {microbatches} microbatches: the weight would be another one than that of one process. Use"
            " microbatches: 1, or leave this layer out"
        )


def _updated(nodes: Iterable[Any], names: Mapping[str, str], functions: Mapping[str, Any]) -> str | None:
    """Return a variable that operations assign to, in the bodies of branches and loops, too; None where there is none.

    `names` has the variables by the names of the inputs that hold them.
    """
    for node in nodes:
        inputs = list(node.input)
        if node.op.startswith(_UPDATES) and inputs[0] in names:
            return names[inputs[0]]
        # The first input of a branch chooses it.
        passed = inputs[1:] if node.op in _BRANCHES else inputs
        for attribute in node.attr.values():
            called = (attribute.func, *attribute.list.func)
            for name in (function.name for function in called if function.name in functions):
                body = functions[name]
                arguments = zip(body.signature.input_arg, passed, strict=False)
                inner = {argument.name: names[value] for argument, value in arguments if value in names}
                if inner and (updated := _updated(body.node_def, inner, functions)) is not None:
                    return updated
    return None
