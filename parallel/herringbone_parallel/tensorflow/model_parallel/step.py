"""`@smp.step`: runs a function once per microbatch, pipelined over the ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, overload

import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.dataflow import Output
from herringbone_parallel.core.pipeline.split import Splitter
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.arrays import as_tensor
from herringbone_parallel.tensorflow.model_parallel.output import StepOutput
from herringbone_parallel.tensorflow.model_parallel.placement.trace import recorder
from herringbone_parallel.tensorflow.model_parallel.replicas import average, check_alike
from herringbone_parallel.tensorflow.model_parallel.runtime.pipeline import Run
from herringbone_parallel.tensorflow.model_parallel.runtime.plan import Plan, make_plan
from herringbone_parallel.tensorflow.model_parallel.runtime.transport import PeerFailedError
from herringbone_parallel.tensorflow.model_parallel.split import is_tensor, pieces

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def step(function: Function) -> Function: ...
@overload
def step(
    *,
    non_split_inputs: Sequence[str] = (),
    input_split_axes: Mapping[str, int] | None = None,
    **function_options: Any,
) -> Callable[[Function], Function]: ...
def step(
    function: Any = None,
    *,
    non_split_inputs: Sequence[str] = (),
    input_split_axes: Mapping[str, int] | None = None,
    **function_options: Any,
) -> Any:
    """Split the arguments into microbatches and run the function on each, forward and backward, over the pipeline.

        @smp.step
        def get_gradients(images, labels):
            loss = loss_of(labels, model(images, training=True))
            return optimizer.get_gradients(loss, model.trainable_variables), loss

        gradients, loss = get_gradients(images, labels)
        optimizer.apply_gradients(zip([g.accumulate() for g in gradients], model.trainable_variables))

    It may be called in a `tf.function` and outside of one. Tensors come back as `StepOutput`, on every rank; a gradient
    only on the rank that holds its variable, so that a list of gradients fits `model.trainable_variables` there. Other
    results come back as a list by microbatch. Of `tf.function`'s own arguments it takes `input_signature` and
    `autograph`. Source: SMP v1, `smdistributed.modelparallel.tensorflow.step`.

    Raises `ParallelError` when the number of microbatches does not divide the batch.
    """
    if function is None:
        return functools.partial(
            step, non_split_inputs=non_split_inputs, input_split_axes=input_split_axes, **function_options
        )
    splitter = Splitter(function, non_split_inputs, input_split_axes or {}, pieces)
    stepped = Step(function, splitter, function_options)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return stepped(args, kwargs)

    return tf.autograph.experimental.do_not_convert(call)


class Step:
    """A step function and its plans, one for each combination of shapes and values that it was called with."""

    def __init__(self, function: Any, splitter: Splitter, options: dict[str, Any]) -> None:
        self._function, self._splitter = function, splitter
        self._autograph = options.pop("autograph", True)
        self._signature = options.pop("input_signature", None)
        if options.pop("jit_compile", None):
            raise ParallelError("smp.step(jit_compile=True): XLA cannot leave for another rank; leave it out")
        if options:
            raise ParallelError(
                f"smp.step has no argument {next(iter(options))!r}; of tf.function's it takes"
                " input_signature and autograph"
            )
        self._plans: dict[Any, Plan] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any], microbatches: int | None = None) -> Any:
        """Run a step, with as many microbatches as the settings say where no number is given."""
        here = state.get()
        microbatches = microbatches or here.settings.microbatches
        if recorder() is not None:
            raise ParallelError(f"{self._function.__qualname__}: a step inside another step")
        parts = self._splitter.split(args, kwargs, microbatches)
        with _told(here, here.steps + 1):
            plan = self._plan(here, parts[0], microbatches)
        given = [[leaf for leaf in leaves_of(part) if is_tensor(leaf)] for part in parts]
        if tf.executing_eagerly():
            results = plan.at_once(_Told(here, plan), given, summed=here.averages)
        else:
            results = plan.in_graph(functools.partial(_Told, here, plan), given)
        return plan.collect(results, StepOutput)

    def _plan(self, here: state.State, part: Any, microbatches: int) -> Plan:
        leaves = leaves_of(part)
        specs = self._specs([leaf for leaf in leaves if is_tensor(leaf)], microbatches)
        values = tuple(_Same(leaf) for leaf in leaves if not is_tensor(leaf))
        structure = repr([is_tensor(leaf) for leaf in leaves])
        key = (structure, tuple((spec.dtype, tuple(spec.shape.as_list())) for spec in specs), values)
        if key not in self._plans:
            # Of an earlier job of this process, such as in tests, nothing is left.
            self._plans[key] = make_plan(here, self._function, part, specs, autograph=self._autograph)
        return self._plans[key]

    def _specs(self, tensors: Sequence[Any], microbatches: int) -> list[tf.TensorSpec]:
        """Return what the function is traced with; an extent that the signature leaves open stays open."""
        given = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        if self._signature is None:
            return given
        signature = tf.nest.flatten(self._signature)
        fits = len(signature) == len(given) and all(map(_fits, signature, given, [microbatches] * len(given)))
        if not fits:
            raise ParallelError(
                f"{self._function.__qualname__}: input_signature {signature} does not fit the tensors of a microbatch,"
                f" {given}"
            )
        return [
            tf.TensorSpec([extent and have for extent, have in zip(spec.shape, one.shape, strict=True)], one.dtype)
            for spec, one in zip(signature, given, strict=True)
        ]


def _fits(signature: tf.TensorSpec, microbatch: tf.TensorSpec, microbatches: int) -> bool:
    """Say whether a signature, of a whole batch, covers what a microbatch of it has."""
    return (
        signature.dtype == microbatch.dtype
        and signature.shape.rank == microbatch.shape.rank
        and all(s in (None, m, m and m * microbatches) for s, m in zip(signature.shape, microbatch.shape, strict=True))
    )


class _Same:
    """A value that is no tensor, as part of a plan's key: equal, or the same object."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __hash__(self) -> int:
        try:
            return hash(self._value)
        except TypeError:
            return id(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or type(self._value) is not type(other._value):
            return False
        return self._value is other._value or (
            isinstance(self._value, int | float | str | bool) and bool(self._value == other._value)
        )


class _Told(Run):
    """A run of the pipeline whose failure the other ranks hear of."""

    def __init__(self, here: state.State, plan: Plan, *, adds: int = 0) -> None:
        here.steps += 1
        settings = here.settings
        active = settings.active_microbatches
        note = None if here.timeline is None else here.timeline.note
        program = plan.program(adds)
        super().__init__(program, here.steps, here.transport, here.pipeline, settings.pipeline, active, note)
        self._here, self._plan = here, plan

    def run(self, microbatches: Sequence[Sequence[Any]], summed: Sequence[Output] = ()) -> list[list[Any]]:
        here, step = self._here, self._step
        try:
            with _told(here, step):
                tensors = [[as_tensor(leaf) for leaf in leaves] for leaves in microbatches]
                self._begin()
                found = super().run(tensors, summed)
                if here.averages:
                    # In the place of this replica's sums.
                    averages = average([self.sums[value] for value in summed], self._plan.variables)
                    self.sums.update(zip(summed, averages, strict=True))
                return found
        except BaseException:
            if here.timeline is not None:
                here.timeline.write_own()
            raise
        finally:
            here.peak_live = self.peak_live
            if here.transport is not None:
                here.transport.forget(step)

    def _begin(self) -> None:
        plan = self._plan
        plan.runs += 1
        # What makes replicas differ has done so in the first.
        if plan.runs == 2 and plan.summed and self._here.replicas is not None:
            check_alike(self._here)


@contextmanager
def _told(here: state.State, step: int) -> Iterator[None]:
    """Let the other ranks know when what is in the `with` block fails."""
    try:
        yield
    except PeerFailedError:
        here.steps = step
        raise
    except BaseException as error:
        here.steps = step
        if here.transport is not None:
            here.transport.tell_failure(step, f"{type(error).__name__}: {error}")
        raise
