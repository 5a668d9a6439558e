"""Traces a step function once, on one microbatch, into one graph, and notes which operations belong to which layer.

The graph is the whole computation, forward and backward, the same on every rank. Variables that the model makes on the
way get a handle and a shape, and no memory: who holds them is decided afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph, func_graph_from_py_func
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.model_parallel.training.refusals import refuse_dynamic_scale
from herringbone_parallel.tensorflow.patches import Patches


@dataclass(slots=True)
class Stretch:
    """The operations from `start` up to `end` of the graph, that belong to a layer or to a `with smp.partition`.

    `partition` is what the innermost `with` around it says; `outer` is the number of the stretch around it.
    """

    start: int
    outer: int | None
    layer: Any = None
    partition: int | None = None
    end: int = -1


@dataclass(slots=True)
class Traced:
    """What tracing found; stretches are in the order of their starts."""

    graph: Any
    # Variables without memory, and how to compute their first values.
    deferred: list[tuple[Any, Callable[[], Any]]]
    outputs: list[Any] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    # Where operations compute gradients: starts and ends.
    gradients: list[tuple[int, int]] = field(default_factory=list)
    # The variable that a tensor, by its name, is the gradient of.
    gradient_of: dict[str, Any] = field(default_factory=dict)
    # Whether sparse gradients become dense ones.
    densify: bool = False
    # Variables that were made inside of a layer, with memory or without.
    made_in_layers: list[Any] = field(default_factory=list)


class _Recorder:
    """Watches one trace; everything that is patched for it is put back when it ends."""

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self._open: list[int] = []

    @contextmanager
    def stretch(self, *, layer: Any = None, partition: int | None = None) -> Iterator[None]:
        graph, found = self._traced.graph, self._traced.stretches
        if tf.compat.v1.get_default_graph() is not graph:
            # Inside a loop or a branch: to the graph that is cut, all of it is one operation.
            yield
            return
        outer = self._open[-1] if self._open else None
        found.append(Stretch(count(graph), outer, layer, self.partition if partition is None else partition))
        self._open.append(len(found) - 1)
        try:
            yield
        finally:
            found[self._open.pop()].end = count(graph)

    @property
    def partition(self) -> int | None:
        """The innermost partition that is open."""
        for number in reversed(self._open):
            partition = self._traced.stretches[number].partition
            if partition is not None:
                return partition
        return None

    @contextmanager
    def watching(self) -> Iterator[None]:
        global _recorder
        call, gradients, gradient = keras.layers.Layer.__call__, tf.gradients, tf.GradientTape.gradient
        recorder = self

        def watched_call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            with recorder.stretch(layer=layer):
                return call(layer, *args, **kwargs)

        def watched_gradients(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
            return recorder.gradients(gradients, ys, xs, args, kwargs)

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
            found = recorder.gradients(gradients, tf.nest.flatten(target), tf.nest.flatten(sources), (), kwargs)
            return tf.nest.pack_sequence_as(sources, found)

        def refused_scale(optimizer: Any, _: Any) -> Any:
            refuse_dynamic_scale(optimizer, "scale_loss")

        patches = Patches()
        before, _recorder = _recorder, self
        try:
            patches.set(keras.layers.Layer, "__call__", watched_call)
            patches.set(tf, "gradients", watched_gradients)
            patches.set(tf.GradientTape, "gradient", gradient_in_graph)
            patches.set(keras.optimizers.LossScaleOptimizer, "scale_loss", refused_scale)
            yield
        finally:
            _recorder = before
            patches.undo()

    def gradients(self, compute: Any, ys: Any, xs: Any, args: Any, kwargs: Any) -> list[Any]:
        """Compute gradients in the graph, and remember of which variables they are."""
        graph = self._traced.graph
        self._refuse_unscaled(ys)
        sources = [variable_of(source) for source in tf.nest.flatten(xs)]
        start = count(graph)
        found: list[Any] = compute(ys, sources, *args, **kwargs)
        if self._traced.densify:
            found = [tf.convert_to_tensor(one) if isinstance(one, tf.IndexedSlices) else one for one in found]
        self._traced.gradients.append((start, count(graph)))
        for source, gradient in zip(sources, found, strict=True):
            if gradient is not None and isinstance(source, tf.Variable):
                for part in tf.nest.flatten(gradient, expand_composites=True):
                    self._traced.gradient_of[part.name] = source
        return found

    def _refuse_unscaled(self, ys: Any) -> None:
        """Gradients in 16 bits vanish unless the loss has been multiplied by something large."""
        halves = [s.layer for s in self._traced.stretches if getattr(s.layer, "compute_dtype", None) == "float16"]
        if halves and any(tensor.op.type != "Mul" for tensor in tf.nest.flatten(ys)):
            raise ParallelError(
                f"layer {halves[0].name!r} computes in float16, and the gradients are of a loss that is not scaled:"
                " most of them would be 0. Take those of optimizer.scale_loss(loss), with a scale that is fixed:"
                " keras.optimizers.Adam(loss_scale_factor=1024); or use the policy 'mixed_bfloat16', which needs none."
            )

    def make_variable(self, make: Callable[..., Any], **how: Any) -> Any:
        variable = self._make_variable(make, how)
        if self._open:
            self._traced.made_in_layers.append(variable)
        return variable

    def _make_variable(self, make: Callable[..., Any], how: dict[str, Any]) -> Any:
        """Make a variable without memory, if its first value can be computed later."""
        initial = how.get("initial_value")
        if not callable(initial):
            return make(**how)
        dtype = how.get("dtype")
        try:
            with tf.Graph().as_default():
                sample = tf.convert_to_tensor(initial(), dtype=dtype)
        except Exception:  # noqa: BLE001  what it needs is not in a graph of its own: it is computed now
            return make(**how)
        variable = without_memory(how, sample.shape, sample.dtype)
        self._traced.deferred.append((variable, initial))
        return variable


_recorder: _Recorder | None = None


def recorder() -> _Recorder | None:
    """Return what watches the trace that is under way, None outside of one."""
    return _recorder


def count(graph: Any) -> int:
    """Return the number of operations in a graph."""
    return len(graph.get_operations())


def without_memory(like: Any, shape: Any, dtype: Any) -> Any:
    """Return a variable that has a handle, a shape and a type, and no memory until it is assigned a value.

    All else is taken from `like`: another variable, or a dict of what it is to be made with.
    """
    names = ("name", "trainable", "constraint", "synchronization", "aggregation")
    how = {name: like.get(name) if isinstance(like, dict) else getattr(like, name) for name in names}
    how["name"] = how["name"] and how["name"].partition(":")[0]
    return UninitializedVariable(shape=shape, dtype=dtype, **how)


def variable_of(source: Any) -> Any:
    """Return TensorFlow's variable inside one of Keras; anything else as it is."""
    return source.value if isinstance(source, keras.Variable) else source


def trace(
    body: Callable[..., Any],
    specs: Sequence[Any],
    *,
    name: str,
    deferred: list[tuple[Any, Callable[[], Any]]],
    densify: bool = False,
) -> Traced:
    """Run `body` on placeholders of these specs, in a graph of its own, and return what was found.

        traced = trace(lambda images, labels: [...], [tf.TensorSpec((16, 28, 28, 1)), ...], name="step", deferred=[])

    `body` returns a flat list of tensors, which are the graph's outputs. Variables that it makes without memory are
    added to `deferred`, also when it fails: their layers keep them. With `densify` gradients are dense ones.
    """
    graph = FuncGraph(name)
    traced = Traced(graph, deferred=deferred, densify=densify)
    watcher = _Recorder(traced)
    with tf.init_scope(), watcher.watching(), tf.variable_creator_scope(watcher.make_variable):
        try:
            func_graph_from_py_func(name, tf.autograph.experimental.do_not_convert(body), specs, {}, func_graph=graph)
        except (TypeError, ValueError) as error:
            if "out of scope" in str(error) or "inaccessible" in str(error):
                raise ParallelError(
                    f"the step uses a tensor of the function around it: pass it as an argument ({error})"
                ) from error
            raise
    traced.outputs = list(graph.outputs)
    return traced
