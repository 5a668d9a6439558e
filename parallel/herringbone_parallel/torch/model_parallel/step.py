"""`@smp.step`: runs a function once per microbatch, pipelined over the ranks."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, overload

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.divergence import Progress, digest
from herringbone_parallel.core.pipeline.schedule import make_schedule
from herringbone_parallel.core.pipeline.split import Splitter
from herringbone_parallel.core.structure import replace_leaves
from herringbone_parallel.torch.model_parallel import state
from herringbone_parallel.torch.model_parallel.failures import FIRST_WORD_SECONDS, PeerFailedError, described
from herringbone_parallel.torch.model_parallel.results import collect, share
from herringbone_parallel.torch.model_parallel.runtime import randomness
from herringbone_parallel.torch.model_parallel.runtime.cpu_affinity import placing_of
from herringbone_parallel.torch.model_parallel.runtime.deferral import Deferral
from herringbone_parallel.torch.model_parallel.runtime.mailbox import Post
from herringbone_parallel.torch.model_parallel.runtime.microbatch import Microbatch, current
from herringbone_parallel.torch.model_parallel.runtime.modes import entered, thread_modes
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor
from herringbone_parallel.torch.model_parallel.runtime.run_token import Baton
from herringbone_parallel.torch.model_parallel.runtime.shapes import ShapeBook
from herringbone_parallel.torch.model_parallel.runtime.stall import STALL_PURPOSES, RanksDivergedError, StallProbe
from herringbone_parallel.torch.model_parallel.runtime.transport import Key, Purpose, Transport
from herringbone_parallel.torch.model_parallel.split import check_device, pieces

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

    Every tensor argument is cut along axis 0 (`input_split_axes` gives another, by argument name; `non_split_inputs`
    are passed whole). Tensors come back as `StepOutput`, on every rank of the pipeline; other results as a list by
    microbatch. Source: SMP v1, `smdistributed.modelparallel.torch.step`.

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
        here = state.get()
        if current() is not None:
            raise ParallelError(f"{function.__qualname__}: a step inside another step")
        check = functools.partial(check_device, here.device)
        parts = splitter.split(args, kwargs, here.settings.microbatches, check)
        if here.model is not None:
            here.model.settle(functools.partial(_run_alone, here, function, parts[0]))
        with here.reducing():
            results = _run(here, function, parts, detach_outputs)
        return collect(results)

    return stepped


def _run_alone(
    here: state.State,
    function: Callable[..., Any],
    part: Any,
    device: torch.device,
    watch: AbstractContextManager[None],
) -> None:
    """Run one microbatch as a pipeline of this rank alone would, before the model is partitioned."""
    modes = thread_modes()

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().to(device, copy=True).requires_grad_(leaf.requires_grad)

    args, kwargs = replace_leaves(part, copied)

    def body(index: int) -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        microbatch = Microbatch(Post(0, 0, index, None, baton), 1, device, ShapeBook(), scale=1.0, seed=0)
        with entered(modes), watch:
            _run_one(microbatch, function, args, kwargs, detach=True)

    baton = Baton(make_schedule("simple", active=1), here.crew, 1, body, randomness.keep)
    baton.run()


def _run(here: state.State, function: Callable[..., Any], parts: Sequence[Any], detach: bool) -> list[Any]:
    settings, count = here.settings, len(parts)
    results: list[Any] = [None] * count
    modes = thread_modes()
    here.steps += 1
    number = here.steps
    model = here.model
    scale = 1 / count if model is None or model.average_grads_across_microbatches else 1.0
    seed = randomness.draw_seed()
    restore = randomness.keep()
    traces = [Progress() for _ in parts]

    def body(index: int) -> None:
        if here.device.type == "cuda":
            torch.cuda.set_device(here.device)
        post = Post(here.pp_rank, number, index, here.transport, baton)
        deferral = Deferral() if settings.pipeline == "zero_bubble" else None
        own_seed = randomness.seed_of(seed, index)
        microbatch = Microbatch(
            post, settings.partitions, here.device, here.book, scale=scale, seed=own_seed, deferral=deferral
        )
        traces[index].calls = microbatch.trace
        args, kwargs = parts[index]
        with entered(modes):
            results[index] = _run_one(microbatch, function, args, kwargs, detach)
        traces[index].ended = True
        if deferral:
            post.enter_weight()
            deferral.run()
        if here.transport is not None:
            here.transport.reap()

    note = None if here.timeline is None else here.timeline.of_step(number)
    schedule = make_schedule(settings.pipeline, active=settings.active_microbatches)
    placing = placing_of(here.local_size, torch.get_num_threads())
    baton = Baton(schedule, here.crew, count, body, randomness.keep, note, placing)
    try:
        if here.transport is None:
            baton.run()
        else:
            results = _run_with_peers(here, here.transport, baton, results, traces)
    except BaseException:
        here.failed_step = number
        if here.timeline is not None:
            here.timeline.write_own()
        raise
    finally:
        restore()
    here.book.turn_page()
    return results


def _run_with_peers(
    here: state.State, transport: Transport, baton: Baton, results: list[Any], traces: list[Progress]
) -> list[Any]:
    """Run the step and share its results; a failure reaches every peer, and a peer's failure ends the step here."""
    probe = StallProbe(here.pp_rank, here.steps, transport, baton, lambda: [progress.snapshot() for progress in traces])

    def deliver(source: int, key: Key, content: Any) -> None:
        if key.step <= here.failed_step:
            # Of a step that has failed here too.
            return
        if key.purpose == Purpose.FAILURE:
            lost = source == here.pp_rank
            baton.fail(PeerFailedError(content if lost else f"pipeline rank {source} failed in this step: {content}"))
        elif key.purpose in STALL_PURPOSES:
            probe.receive(source, key.purpose, content)
        else:
            baton.deliver((source, key), content)

    def outputs() -> Key:
        # Ranks that have not made the same calls do not find each other's results, and the probe tells them why.
        return Key(here.steps, 0, digest(progress.calls for progress in traces), Purpose.RESULTS)

    def send(peer: int, packed: torch.Tensor) -> None:
        transport.send_tensor(peer, outputs(), packed)

    def wait(owner: int) -> torch.Tensor:
        received: torch.Tensor = baton.wait_outside((owner, outputs()), probe.look)
        return received

    transport.listen(here.steps, deliver)
    try:
        baton.run(probe.look)
        shared = share(results, here.pp_rank, here.settings.partitions, send, wait)
        probe.over()
        transport.release()
    except RanksDivergedError:
        # Every rank says so by itself.
        raise
    except PeerFailedError:
        # The rank that failed should be the first to be heard.
        time.sleep(FIRST_WORD_SECONDS)
        raise
    except BaseException as failure:
        reason = described(failure)
        for peer in transport.peers:
            transport.send_object(peer, Key(here.steps, 0, 0, Purpose.FAILURE), reason)
        raise
    return shared


def _run_one(microbatch: Microbatch, function: Callable[..., Any], args: Any, kwargs: Any, detach: bool) -> Any:
    with microbatch.running():
        result = function(*args, **kwargs)

    def detached(leaf: Any) -> Any:
        plain = isinstance(leaf, torch.Tensor) and not isinstance(leaf, PlacedTensor)
        return leaf.detach() if plain and detach else leaf

    return replace_leaves(result, detached)
