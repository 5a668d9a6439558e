"""`@smp.step`: run a function once per microbatch, pipelined over the ranks.

The life of a step, on every rank:

    [1] split      the arguments into microbatches; the first rank's count   core.pipeline.split, `split`, `arguments`
    [2] run        each microbatch on a thread, one at a time                runtime.run_token, runtime.microbatch
                       forward: calls run where their data is                runtime.transport moves inputs
                       backward: the tape is walked in reverse               runtime.tape
                       gradients that are final leave for the replicas       replicas.reducer
    [3] share      the results with all ranks of the pipeline                `results`
    [4] conclude   the average over the replicas; collect the results        replicas.reducer, `results`
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, overload

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.divergence import Progress, digest
from herringbone_parallel.core.pipeline.schedule import Schedule, make_lockstep, make_schedule
from herringbone_parallel.core.pipeline.split import Splitter
from herringbone_parallel.core.structure import replace_leaves
from herringbone_parallel.live_timeline import LiveTimeline, StageWork
from herringbone_parallel.torch.model_parallel import state
from herringbone_parallel.torch.model_parallel.activation_checkpointing import check_offloading, offloading_of_step
from herringbone_parallel.torch.model_parallel.arguments import Arguments
from herringbone_parallel.torch.model_parallel.failures import REPORT_SECONDS, PeerFailedError, described
from herringbone_parallel.torch.model_parallel.results import collect, share
from herringbone_parallel.torch.model_parallel.runtime import randomness
from herringbone_parallel.torch.model_parallel.runtime.bypasses import naming_compilers
from herringbone_parallel.torch.model_parallel.runtime.cpu_affinity import core_hand_over
from herringbone_parallel.torch.model_parallel.runtime.deferral import Deferral
from herringbone_parallel.torch.model_parallel.runtime.kept.turns import Turns
from herringbone_parallel.torch.model_parallel.runtime.kept.versions import Kept
from herringbone_parallel.torch.model_parallel.runtime.mailbox import Mailbox
from herringbone_parallel.torch.model_parallel.runtime.memory import check_current
from herringbone_parallel.torch.model_parallel.runtime.messages import Key, MessageId, Purpose
from herringbone_parallel.torch.model_parallel.runtime.microbatch import Microbatch, current
from herringbone_parallel.torch.model_parallel.runtime.modes import with_surroundings
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor
from herringbone_parallel.torch.model_parallel.runtime.run_token import RunToken
from herringbone_parallel.torch.model_parallel.runtime.shapes import ShapeBook, kind_of
from herringbone_parallel.torch.model_parallel.runtime.stall import STALL_PURPOSES, RanksDivergedError, StallProbe
from herringbone_parallel.torch.model_parallel.runtime.transport import Transport
from herringbone_parallel.torch.model_parallel.split import check_device, pieces
from herringbone_parallel.torch.model_parallel.tensor.agreement import agreed_seed
from herringbone_parallel.torch.model_parallel.timeline import recorder

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def step(function: Function) -> Function: ...
@overload
def step(
    *,
    non_split_inputs: Sequence[str] = (),
    input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> Callable[[Function], Function]: ...
def step(
    function: Any = None,
    *,
    non_split_inputs: Sequence[str] = (),
    input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> Any:
    """Split the arguments into microbatches and run the function on each, forward and backward, over the pipeline.

        @smp.step
        def train_step(model, images, labels):
            loss = F.cross_entropy(model(images), labels)
            model.backward(loss)
            return loss

        loss = train_step(model, images, labels).reduce_mean()

    Every tensor argument is cut along axis 0. `input_split_axes` gives another axis by argument name, and arguments in
    `non_split_inputs` are passed whole. Tensors come back as `StepOutput`, on every rank of the pipeline; other results
    as a list by microbatch. Source: SMP v1, `smdistributed.modelparallel.torch.step`.

    Raises `ParallelError` before anything runs when the number of microbatches does not divide the batch, or a tensor
    is on another device than this rank's.
    """
    if function is None:
        return functools.partial(
            step, non_split_inputs=non_split_inputs, input_split_axes=input_split_axes, detach_outputs=detach_outputs
        )
    splitter = Splitter(function, non_split_inputs, input_split_axes or {}, pieces)

    @functools.wraps(function)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        library = state.get()
        if current() is not None:
            raise ParallelError(f"{function.__qualname__}: a step inside another step")
        check = functools.partial(check_device, library.device)
        split = functools.partial(splitter.split, microbatches=library.settings.microbatches, check=check)
        # [1]
        arguments = Arguments(args, kwargs, split, library.device)
        if library.model is not None:
            library.model.settle(functools.partial(_run_alone, library, function, arguments.parts[0]))
        library.offloading = offloading_of_step(library)
        # [2] to [4]
        with library.reducing():
            results = _run(library, function, arguments, detach_outputs)
        if library.model is not None:
            library.model.end_step()
        return collect(results)

    return stepped


def _run_alone(
    library: state.State,
    function: Callable[..., Any],
    part: Any,
    device: torch.device,
    watch: AbstractContextManager[None],
) -> None:
    """Run one microbatch on this rank as the only rank of a pipeline, before the model is partitioned."""

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        # A copy, because the step function may write into its arguments, and the step runs on them afterwards.
        return leaf.detach().to(device, copy=True).requires_grad_(leaf.requires_grad)

    args, kwargs = replace_leaves(part, copied)
    kept = Kept.of(library, function)
    kept.begin_step()

    def body(index: int) -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        microbatch = Microbatch(Mailbox(0, 0, index, None, token), 1, device, ShapeBook(), scale=1.0, seed=0)
        kept.begin(0, microbatch)
        with watch:
            _run_function(microbatch, function, args, kwargs, detach=True)

    token = RunToken(
        make_schedule("simple", active=1), library.pool, 1, with_surroundings(body), randomness.save_generators
    )
    token.run()
    kept.undo()


def _run(library: state.State, function: Callable[..., Any], arguments: Arguments, detach: bool) -> list[Any]:
    settings, count = library.settings, len(arguments.parts)
    results: list[Any] = [None] * count
    step_number = library.steps = library.steps + 1
    scale = _gradient_scale(library, count)
    # The script's generator advances by this one draw, whatever the microbatches draw.
    seed, restore = randomness.draw_seed(), randomness.save_generators()
    traces = [Progress() for _ in arguments.parts]
    kept = Kept.begun(library, function)

    def body(index: int) -> None:
        # Runs in a thread of the pool: CUDA's current device, grad mode and autocast are thread-local.
        if library.device.type == "cuda":
            torch.cuda.set_device(library.device)
        mailbox = _mailbox(library, index, token, kept)
        deferral = Deferral() if settings.pipeline == "zero_bubble" else None
        stream_seed = randomness.seed_of(arguments.seed, index)
        microbatch = Microbatch(
            mailbox, settings.partitions, library.device, library.book, scale=scale, seed=stream_seed, deferral=deferral
        )
        traces[index].calls = microbatch.trace
        args, kwargs = arguments.parts[index]
        kept.begin(index, microbatch)
        results[index] = _run_function(microbatch, function, args, kwargs, detach)
        traces[index].ended = True
        if library.offloading is not None:
            library.offloading.end_backward(index)
        if deferral:
            mailbox.enter_weight()
            deferral.run()
        kept.end(index)
        if library.transport is not None:
            library.transport.reap()

    live, work = LiveTimeline.of_step(step_number, library.pp_rank), _stage_work(library)
    # In every step, because the script may change the number of threads.
    library.pool.hand_over = core_hand_over(library.local_size, torch.get_num_threads(), library.device.type)
    schedule, in_order = _schedule(library, count, kept), kept.turns is Turns.PHASES
    record = recorder(None if library.timeline is None else library.timeline.of_step(step_number), live, work)
    token = RunToken(schedule, library.pool, count, with_surroundings(body), kept.save_state, record, in_order=in_order)
    try:
        arguments.seed = agreed_seed(library, arguments.parts[0], seed)
        if library.transport is None:
            token.run()
            results.append(kept.conclude())
        else:
            results = _run_with_peers(library, library.transport, token, arguments, results, traces, kept)
        kept.end_step(results.pop())
    except BaseException:
        library.failed_step = step_number
        if library.timeline is not None:
            library.timeline.write_own()
        raise
    finally:
        restore()
        kept.stop()
    _end_step(library, live, work)
    return results


def _stage_work(library: state.State) -> StageWork | None:
    if library.transport is None:
        return None
    return StageWork.of_step(library.steps, library.pp_rank, 1 if library.replicas is None else library.replicas.size)


def _end_step(library: state.State, live: LiveTimeline | None, work: StageWork | None) -> None:
    check_offloading(library)
    library.book.turn_page()
    if work is not None:
        work.end()
    if live is not None:
        settings = library.settings
        live.send(pipeline=settings.pipeline, active=settings.active_microbatches, partitions=settings.partitions)


def _mailbox(library: state.State, index: int, token: RunToken, kept: Kept) -> Mailbox:
    """Return the mailbox of a microbatch that this thread runs from now on."""
    if library.offloading is not None:
        library.offloading.begin(index)

    def ends_forward() -> None:
        kept.end_forward()
        if library.offloading is not None:
            library.offloading.end_forward(index)

    return Mailbox(library.pp_rank, library.steps, index, library.transport, token, ends_forward)


def _schedule(library: state.State, count: int, kept: Kept) -> Schedule:
    settings = library.settings
    pipeline, active = settings.pipeline, settings.active_microbatches
    if kept.turns is Turns.WHOLE:
        pipeline, active = "interleaved" if pipeline == "simple" else pipeline, 1
    if library.peers is not None and settings.partitions > 1:
        # The ranks of a tensor group meet in collectives, so each must run its microbatches in the same order.
        return make_lockstep(pipeline, active=active, count=count)
    return make_schedule(pipeline, active=active)


def _gradient_scale(library: state.State, count: int) -> float:
    """Return the factor of the gradients that backwards start from: for `count` microbatches, and for float16."""
    model = library.model
    scale = 1 / count if model is None or model.average_grads_across_microbatches else 1.0
    return scale if library.loss_scale is None else scale * library.loss_scale.value


def _run_with_peers(
    library: state.State,
    transport: Transport,
    token: RunToken,
    arguments: Arguments,
    results: list[Any],
    traces: list[Progress],
    kept: Kept,
) -> list[Any]:
    """Run the step; share its results, and as the last of them what stays of the kept state.

    A failure reaches every peer; a peer's failure ends the step on this rank.
    """
    probe = StallProbe(
        library.pp_rank, library.steps, transport, token, lambda: [progress.snapshot() for progress in traces]
    )

    def deliver(source: int, key: Key, content: Any) -> None:
        # Runs in the transport's receiving threads.
        if key.step <= library.failed_step:
            # A late message of a step that has failed on this rank as well.
            return
        if key.purpose == Purpose.FAILURE:
            # The transport reports a lost connection in this rank's name.
            lost = source == library.pp_rank
            token.fail(PeerFailedError(content if lost else f"pipeline rank {source} failed in this step: {content}"))
        elif key.purpose in STALL_PURPOSES:
            probe.receive(source, key.purpose, content)
        elif key.purpose == Purpose.WANTED:
            transport.send_object(source, Key(key.step, 0, 0, Purpose.ARGUMENTS), arguments.leaves())
        else:
            token.deliver(MessageId(source, key), content)

    transport.listen(library.steps, deliver)
    try:
        _agree(library, transport, token, probe, arguments)
        token.run(probe.poll)
        # [3]
        left = kept.conclude()
        if kept.first_step:
            kept.turns = _agree_on_turns(library, transport, token, probe, kept.turns)
        shared = _share(library, transport, token, probe, [*results, left], traces)
        probe.end_step()
        # The script may write into its tensors from here on.
        transport.release()
    except RanksDivergedError:
        # No report to the peers: each of them raises this error by itself.
        raise
    except PeerFailedError:
        # The failed rank's own error should be the first in the log, and the first that the launcher sees.
        time.sleep(REPORT_SECONDS)
        raise
    except BaseException as failure:
        reason = described(failure)
        for peer in transport.peers:
            transport.send_object(peer, Key(library.steps, 0, 0, Purpose.FAILURE), reason)
        raise
    return shared


def _agree(
    library: state.State, transport: Transport, token: RunToken, probe: StallProbe, arguments: Arguments
) -> None:
    """Let the arguments of the pipeline's first rank count on this one."""

    def send(peer: int, purpose: Purpose, content: Any) -> None:
        transport.send_object(peer, Key(library.steps, 0, 0, purpose), content)

    def wait(purpose: Purpose) -> Any:
        return token.wait_outside(MessageId(0, Key(library.steps, 0, 0, purpose)), probe.poll)

    if library.pp_rank == 0 and library.model is not None:
        arguments.kind = kind_of(library.model.module)
    arguments.agree(library.pp_rank, transport.peers, send, wait)
    library.book.kind = arguments.kind


def _agree_on_turns(
    library: state.State, transport: Transport, token: RunToken, probe: StallProbe, turns: Turns
) -> Turns:
    """Return the turns that the code of the rank needs that keeps most."""
    key = Key(library.steps, 0, 0, Purpose.TURNS)
    for peer in transport.peers:
        transport.send_object(peer, key, int(turns))
    others = (token.wait_outside(MessageId(peer, key), probe.poll) for peer in transport.peers)
    return Turns(max(turns, *others))


def _share(
    library: state.State,
    transport: Transport,
    token: RunToken,
    probe: StallProbe,
    results: list[Any],
    traces: Sequence[Progress],
) -> list[Any]:
    """Return the results with data in them, on every rank."""

    def results_key() -> Key:
        # The key hashes the traces: if ranks diverged, their results never match, and the stall probe reports the
        # difference.
        return Key(library.steps, 0, digest(progress.calls for progress in traces), Purpose.RESULTS)

    def send(peer: int, packed: torch.Tensor) -> None:
        transport.send_tensor(peer, results_key(), packed)

    def wait(owner: int) -> torch.Tensor:
        received: torch.Tensor = token.wait_outside(MessageId(owner, results_key()), probe.poll)
        return received

    return share(results, library.pp_rank, library.settings.partitions, send, wait)


def _run_function(microbatch: Microbatch, function: Callable[..., Any], args: Any, kwargs: Any, detach: bool) -> Any:
    """Run the user's function as one microbatch, and return its result, detached if `detach`."""
    with microbatch.running(), naming_compilers():
        result = function(*args, **kwargs)

    def detached(leaf: Any) -> Any:
        if isinstance(leaf, PlacedTensor):
            check_current(leaf.value)
            leaf.value.end()
        # A placed tensor has no graph of its own; `share` puts data without a graph in its place.
        ordinary = isinstance(leaf, torch.Tensor) and not isinstance(leaf, PlacedTensor)
        return leaf.detach() if ordinary and detach else leaf

    # Results wait for the end of the step, without the inputs of their segments.
    microbatch.tape.end()
    return replace_leaves(result, detached)
