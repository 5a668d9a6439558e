"""`@smp.step`: runs a function once per microbatch, pipelined over the ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, overload

import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_contract.events.steps import hand_over, tick
from herringbone_parallel.core.pipeline.dataflow import Output
from herringbone_parallel.core.pipeline.split import Splitter
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.arrays import as_tensor
from herringbone_parallel.tensorflow.model_parallel.batches import check_same, sample_of
from herringbone_parallel.tensorflow.model_parallel.output import StepOutput
from herringbone_parallel.tensorflow.model_parallel.plan import Plan, make_plan
from herringbone_parallel.tensorflow.model_parallel.replicas import average, check_alike, join_slices
from herringbone_parallel.tensorflow.model_parallel.runtime.pipeline import Run
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

    Call it in a `tf.function` or outside of one. Tensors come back as `StepOutput` on every rank. A gradient comes back
    only on the rank that holds its variable, so that a list of gradients fits `model.trainable_variables` there. Other
    results come back as a list by microbatch. `function_options`: `input_signature` and `autograph` of `tf.function`.
    Source: SMP v1, `smdistributed.modelparallel.tensorflow.step`.

    Raises `ParallelError` when the number of microbatches does not divide the batch, and after a first step for which
    the ranks of a pipeline were given different batches.
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

    # AutoGraph must not rewrite this library's code; `make_plan` converts the user's function by itself.
    return tf.autograph.experimental.do_not_convert(call)


class Step:
    """A step function and its plans, one for each combination of shapes and values of its arguments.

    A plan holds what its trace read of the model: losses, metrics, the variables that are trained. So a change of any
    of them needs another plan.
    """

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
        # The compilation of the model that the plans were made for.
        self._compilation = 0

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any], microbatches: int | None = None) -> Any:
        """Run a step; without a number of microbatches, take that of the settings."""
        rank_state = state.get()
        microbatches = microbatches or rank_state.settings.microbatches
        if state.is_tracing():
            raise ParallelError(f"{self._function.__qualname__}: a step inside another step")
        parts = self._splitter.split(args, kwargs, microbatches)
        # A failure while tracing belongs to the next step, for which the other ranks may already wait.
        with _reporting_failures(rank_state, rank_state.steps + 1):
            plan = self._plan(rank_state, parts[0], microbatches)
        # Values that are no tensors are part of the plan already: the function was traced with them.
        tensors = [[leaf for leaf in leaves_of(part) if is_tensor(leaf)] for part in parts]
        if tf.executing_eagerly():
            results = plan.at_once(_ReportingRun(rank_state, plan, tensors), tensors, summed=rank_state.averages)
        else:
            sample = sample_of([leaf for leaf in leaves_of((args, kwargs)) if is_tensor(leaf)])
            results = plan.in_graph(functools.partial(_ReportingRun, rank_state, plan), tensors, sample)
        return plan.collect(results, StepOutput)

    def _plan(self, rank_state: state.State, part: Any, microbatches: int) -> Plan:
        leaves = leaves_of(part)
        specs = self._specs([leaf for leaf in leaves if is_tensor(leaf)], microbatches)
        values = tuple(_PlainValue(leaf) for leaf in leaves if not is_tensor(leaf))
        structure = repr([is_tensor(leaf) for leaf in leaves])
        key = (structure, tuple((spec.dtype, tuple(spec.shape.as_list())) for spec in specs), values)
        if self._compilation != rank_state.compilation:
            self._plans.clear()
            self._compilation = rank_state.compilation
        if (plan := self._plans.get((key, rank_state.trainability()))) is None:
            plan = make_plan(rank_state, self._function, part, specs, autograph=self._autograph)
            # Asked for again: the first trace creates the variables of a model.
            self._plans[key, rank_state.trainability()] = plan
        return plan

    def _specs(self, tensors: Sequence[Any], microbatches: int) -> list[tf.TensorSpec]:
        """Return the specs to trace the function with; an extent that the signature leaves open stays open."""
        actual_specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        if self._signature is None:
            return actual_specs
        signature = tf.nest.flatten(self._signature)
        fits = len(signature) == len(actual_specs) and all(
            map(_fits, signature, actual_specs, [microbatches] * len(actual_specs))
        )
        if not fits:
            raise ParallelError(
                f"{self._function.__qualname__}: input_signature {signature} does not fit the tensors of a microbatch,"
                f" {actual_specs}"
            )
        return [
            tf.TensorSpec(
                [extent and actual for extent, actual in zip(spec.shape, actual_spec.shape, strict=True)],
                actual_spec.dtype,
            )
            for spec, actual_spec in zip(signature, actual_specs, strict=True)
        ]


def _fits(signature: tf.TensorSpec, microbatch: tf.TensorSpec, microbatches: int) -> bool:
    """Say whether a signature, which describes a whole batch, covers one of its microbatches."""
    return (
        signature.dtype == microbatch.dtype
        and signature.shape.rank == microbatch.shape.rank
        and all(s in (None, m, m and m * microbatches) for s, m in zip(signature.shape, microbatch.shape, strict=True))
    )


class _PlainValue:
    """A value that is no tensor, as part of a plan's key: it matches an equal value or the same object."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __hash__(self) -> int:
        try:
            return hash(self._value)
        except TypeError:
            return id(self._value)

    def __eq__(self, other: object) -> bool:
        # 1 and True are equal in Python, and a step may treat them differently.
        if not isinstance(other, _PlainValue) or type(self._value) is not type(other._value):
            return False
        return self._value is other._value or (
            isinstance(self._value, int | float | str | bool) and bool(self._value == other._value)
        )


class _ReportingRun(Run):
    """A run of the pipeline that reports its failure to the other ranks."""

    def __init__(self, rank_state: state.State, plan: Plan, batch: Any, *, adds: int = 0) -> None:
        # Every rank counts its runs alike. The number tells the messages of one step from those of the next.
        rank_state.steps += 1
        settings = rank_state.settings
        super().__init__(
            plan.program(adds),
            rank_state.steps,
            rank_state.transport,
            rank_state.pipeline,
            settings.pipeline,
            settings.active_microbatches,
            None if rank_state.timeline is None else rank_state.timeline.note,
        )
        self._rank_state, self._plan, self._batch = rank_state, plan, batch

    def run(self, microbatches: Sequence[Sequence[Any]], summed: Sequence[Output] = ()) -> list[list[Any]]:
        rank_state, step = self._rank_state, self._step
        try:
            with _reporting_failures(rank_state, step):
                tensors = [[as_tensor(leaf) for leaf in leaves] for leaves in microbatches]
                self._count_run()
                results = super().run(tensors, summed)
                if self._plan.runs == 1:
                    # After the run, which finds ranks that run different steps. In the first run alone, because ranks
                    # that shuffle with different seeds differ there already.
                    check_same(self._batch)
                if rank_state.averages:
                    # The averages over the replicas replace this replica's sums.
                    averages = average([self.sums[value] for value in summed], self._plan.variables)
                    self.sums.update(zip(summed, averages, strict=True))
                    join_slices(results, self._plan.sparse)
                if self._plan.summed or self._plan.sparse:
                    # It has gradients, so this is no evaluation.
                    if rank_state.settings.partitions > 1:
                        # All ranks of a slow pipeline average late.
                        hand_over(has_waited=True)
                    tick(rank_state)
                return results
        except BaseException:
            # The failed step may be the last thing that this process does.
            if rank_state.timeline is not None:
                rank_state.timeline.write_own()
            raise
        finally:
            rank_state.peak_live = self.peak_live
            # Tensors of a failed step would otherwise stay in the transport for the rest of the job.
            if rank_state.transport is not None:
                rank_state.transport.forget(step)

    def _count_run(self) -> None:
        plan = self._plan
        plan.runs += 1
        # The first run has already applied any mistake that makes replicas differ, so the second run finds it.
        if plan.runs == 2 and (plan.summed or plan.sparse) and self._rank_state.replicas is not None:
            check_alike(self._rank_state)


@contextmanager
def _reporting_failures(rank_state: state.State, step: int) -> Iterator[None]:
    """Report an exception in the `with` block to the other ranks, which then fail in the same step."""
    try:
        yield
    except PeerFailedError:
        # The rank that failed first has reported it. A second report would hide the cause.
        rank_state.steps = step
        raise
    except BaseException as error:
        rank_state.steps = step
        if rank_state.transport is not None:
            rank_state.transport.report_failure(step, f"{type(error).__name__}: {error}")
        raise
