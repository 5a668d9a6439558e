"""One microbatch on one rank: runs each call on the rank where it belongs, and keeps the tape.

Two rules place a call. A module's call runs on the rank that owns the module. Any other operation runs on the rank that
has most of its data. Inputs from other ranks move there directly from their owners; nothing else moves.

    [1] find the placed inputs, and choose the rank                    on every rank
    [2] move inputs that this rank does not have                       owner sends, chosen rank receives
    [3] run the function; others take the shapes from the shape book   on the chosen rank
    [4] wrap the results as placed tensors, and note the call          on every rank

The ranks that do not run a call need the shapes of its results. The rank that runs it sends them during the first step
in which a call has such inputs. From the next step on the `ShapeBook` knows them, and no rank waits for shapes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.divergence import EVERYWHERE, Call
from herringbone_parallel.core.structure import leaves_of, replace_leaves
from herringbone_parallel.torch.model_parallel.failures import note_module
from herringbone_parallel.torch.model_parallel.runtime import memory
from herringbone_parallel.torch.model_parallel.runtime.deferral import Deferral
from herringbone_parallel.torch.model_parallel.runtime.graph_inputs import Inputs
from herringbone_parallel.torch.model_parallel.runtime.mailbox import Mailbox
from herringbone_parallel.torch.model_parallel.runtime.messages import Purpose
from herringbone_parallel.torch.model_parallel.runtime.modes import thread_modes
from herringbone_parallel.torch.model_parallel.runtime.operations import operate, operate_inside
from herringbone_parallel.torch.model_parallel.runtime.phases import Phase
from herringbone_parallel.torch.model_parallel.runtime.placed import (
    TRANSFORMED,
    PlacedTensor,
    Value,
    key_of,
    most_bytes,
)
from herringbone_parallel.torch.model_parallel.runtime.randomness import reseed, seed_generators
from herringbone_parallel.torch.model_parallel.runtime.shapes import ShapeBook, TensorSpec, shapes_of
from herringbone_parallel.torch.model_parallel.runtime.tape import (
    Flow,
    Move,
    Run,
    Segment,
    StartGradient,
    Tape,
    start_gradient,
)
from herringbone_parallel.torch.model_parallel.runtime.visits import Visits

# Attributes of a partitioned model's parameter: the pipeline rank it lives on, and its name in the model.
OWNER_ATTRIBUTE, PATH_ATTRIBUTE = "_smp_owner", "_smp_path"
# The attribute of a module that holds its `Home`.
HOME_ATTRIBUTE = "_smp_home"
OF_ANOTHER = (
    "a tensor that another microbatch, or an earlier step, has left where this library does not look: keep it in an"
    " attribute of a module, or in a list, dict or variable that the code of the model reaches"
)

# Module names, because Python 3.10 looks up a member of an enum several times slower.
_FORWARD, _BACKWARD = Phase.FORWARD, Phase.BACKWARD

_thread = threading.local()


def current() -> Microbatch | None:
    """Return the microbatch that this thread runs; None outside a step and inside a module's own code."""
    microbatch: Microbatch | None = getattr(_thread, "microbatch", None)
    return microbatch


def in_step() -> bool:
    """Say whether this thread runs microbatches, in code of every rank or of a module. It then runs nothing else."""
    return hasattr(_thread, "of_step")


@contextmanager
def inside(microbatch: Microbatch | None) -> Iterator[None]:
    """Make this the thread's microbatch for a `with` block; pass None for code that runs on one rank only."""
    before = current()
    _thread.microbatch = microbatch
    try:
        yield
    finally:
        _thread.microbatch = before


class Microbatch:
    """The state of one microbatch; its thread enters it while the user's step function runs.

        microbatch = Microbatch(mailbox, partitions, device, book, scale=1 / microbatches, seed=seed)
        with microbatch.running():
            result = step_function(*args)

    `scale` multiplies the gradients that `backward` starts from: 1 / microbatches averages over the microbatches. With
    a `deferral`, backward puts off the gradients of parameters. Only the microbatch's own thread uses its members,
    except `trace`, which the stall probe reads.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        partitions: int,
        device: torch.device,
        book: ShapeBook,
        *,
        scale: float,
        seed: int,
        deferral: Deferral | None = None,
    ) -> None:
        # In a checkpointed part of the forward: applied to the code of each module before it runs.
        self.wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
        self._mailbox = mailbox
        self.index = mailbox.microbatch
        self.tape = Tape(deferral)
        # An `Outward`, None where all code runs on one rank; and the `Kept` of the step.
        self.outward: Any = None
        self.kept: Any = None
        self._peers = [rank for rank in range(partitions) if rank != mailbox.rank]
        self._device = device
        self._book = book
        self._scale = scale
        # Counts for tickets and seeds; a caller that draws for several modules in one call asks it, too.
        self.visits = Visits(seed)
        # The number of the newest value. Every rank counts all values, so a number means the same value everywhere.
        self._serial = 0
        # The calls and their ranks: the same on every rank. Only appended to, so other threads may read it.
        self.trace: list[Call] = []
        # By the identity of a parameter: its placed tensor in this microbatch.
        self._parameters: dict[int, PlacedTensor] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make this the thread's microbatch, with its own stream of random numbers, for a `with` block."""
        with inside(self):
            _thread.of_step = True
            seed_generators(self.visits.stream_seed)
            yield

    def call(
        self,
        name: str,
        target: int | None,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        identity: Hashable = None,
        seed: int | None = None,
    ) -> Any:
        """Run `function` on one rank and return what it returned, with its tensors placed there.

        `target` is the pipeline rank, or None for the rank that holds most of the inputs. Without a target and without
        a placed input, the function runs on every rank alike. `name` is for messages. Calls of one `identity` (default:
        the name) return the same shapes for inputs of the same shapes. Random numbers are drawn from `seed` (default:
        the name's next seed).
        """
        leaves: list[Any] = []
        values: dict[int, Value] = {}

        def collect(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                leaf = self.place_parameter(leaf)
                if isinstance(leaf, PlacedTensor):
                    values[leaf.value.serial] = self._checked(leaf)
            leaves.append(leaf)
            return leaf

        # [1]
        args, kwargs = replace_leaves((args, kwargs), collect)
        if target is None and not values:
            return function(*args, **kwargs)
        if torch._C._are_functorch_transforms_active():
            # The other ranks do not see the transform's own tensors, which may come in through a closure.
            raise ParallelError(TRANSFORMED)
        home = target if target is not None else most_bytes(values.values())
        self.trace.append((name, home))
        if seed is None:
            # On every rank, also where the function does not run: the count of visits must be the same.
            seed = self.visits.seed(name)
        call = (identity or name, home, thread_modes(), tuple(map(key_of, leaves)))
        # [2]
        for value in values.values():
            self._move(value, home)
        # [3]
        known, serial = self._book.get(call), self._next_serial()
        segment = self.tape.segment(home)
        run = Run([value.flow for value in values.values() if value.flow is not None], ())
        made: Sequence[torch.Tensor] = ()
        if home == self._mailbox.rank:
            # A call that may use parameters or buffers. Their gradients and running statistics must add up in the order
            # of the microbatches, because floating-point sums depend on the order.
            ordered = target is not None or any(isinstance(value.local, nn.Parameter) for value in values.values())
            inputs = Inputs(segment)
            real = partial(function, *replace_leaves(args, inputs.enter), **replace_leaves(kwargs, inputs.enter))
            real = real if self.outward is None or callable(identity) else partial(self.outward.run, real)
            result = self._run_here(run, name, seed, ordered, inputs.guarded(name, real))
            inputs.note_writes(name)
            made = [leaf for leaf in leaves_of(result) if isinstance(leaf, torch.Tensor)]
            shapes = shapes_of(result)
            self._share_shapes(name, known, serial, shapes)
        else:
            shapes = known if known is not None else self._mailbox.wait(serial, Purpose.SHAPES, source=home)
        if known is None:
            self._book.learn(call, shapes)
        # [4]
        return self._wrap(segment, run, shapes, made, leaves)

    def backward(
        self, tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], *, retain: bool
    ) -> None:
        """Run the backward of everything that the tensors depend on, when the schedule says so."""
        self.trace.append(("model.backward", EVERYWHERE))
        # Before the wait, in which other microbatches need the memory.
        self.tape.forget_unreachable()
        self._mailbox.enter_backward()
        starts: list[StartGradient] = []
        # Ordinary tensors, whose whole graph is on this rank. They may share it, so one backward runs for all.
        plain: list[tuple[torch.Tensor, torch.Tensor]] = []
        for tensor, gradient in zip(tensors, gradients, strict=True):
            if not tensor.requires_grad:
                raise ParallelError("backward() of a tensor that depends on no parameter that requires a gradient")
            if isinstance(tensor, PlacedTensor):
                memory.check_current(tensor.value)
                starts.append(StartGradient(tensor.value.anchor(), self._start_of(tensor.value, gradient)))
            else:
                plain.append((tensor, start_gradient(tensor, gradient) * self._scale))
        if plain:
            torch.autograd.backward([t for t, _ in plain], [g for _, g in plain], retain_graph=retain)
        # As the code of one rank: operations on parameters inside autograd, such as hooks, are no calls of every rank.
        with inside(None):
            self.tape.backward(starts, self._mailbox, retain=retain)

    def fetch(self, tensor: PlacedTensor) -> torch.Tensor:
        """Return the data, detached, on every rank of the pipeline."""
        value = tensor.value
        memory.check_current(value)
        if value.owner == self._mailbox.rank:
            for peer in sorted({*self._peers} - value.holders):
                self._mailbox.send_tensor(peer, value.serial, Purpose.OUTPUT, memory.lasting(value))
        elif value.local is None:
            value.local = self._mailbox.wait(value.serial, Purpose.OUTPUT, source=value.owner)
        value.holders.update((self._mailbox.rank, *self._peers))
        assert value.local is not None
        return value.local

    def operate(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation on placed tensors of this microbatch."""
        # Inside a module's own code `current()` is None, and no other rank takes part.
        running = current()
        if running is self:
            return operate(self, func, args, kwargs)
        if running is not None:
            raise ParallelError(OF_ANOTHER)
        return operate_inside(func, args, kwargs)

    def place_parameter(self, leaf: Any) -> Any:
        """Return the placed tensor for a parameter that lives on one rank; any other leaf as it is."""
        owner = getattr(leaf, OWNER_ATTRIBUTE, None) if isinstance(leaf, nn.Parameter) else None
        if owner is None:
            return leaf
        # One placed tensor per parameter and microbatch, so that its data moves to each rank only once.
        placed = self._parameters.get(id(leaf))
        if placed is None or placed.value.spec.requires_grad != leaf.requires_grad:
            local = leaf if owner == self._mailbox.rank else None
            placed = self._parameters[id(leaf)] = self.place(owner, TensorSpec.of(leaf), local)
            placed.value.parameter = leaf
        return placed

    def note_write(self, value: Value, *, replaced: bool) -> None:
        """Note on every rank that the owner has written into the parameter `value`, or `replaced` its data."""
        self.kept.note_write(value.parameter)
        if replaced:
            # Other names of the old data keep it.
            del self._parameters[id(value.parameter)]
            value.parameter = None
            return
        memory.note_parameter_write(value)
        value.serial, value.holders = self._next_serial(), {value.owner}
        if self._mailbox.rank != value.owner:
            value.local = None

    def place(
        self, owner: int, spec: TensorSpec, made: torch.Tensor | None, segment: Segment | None = None
    ) -> PlacedTensor:
        """Return a tensor for a new value; `made` is its data on the owner. Every rank calls it."""
        value = Value(owner, self._next_serial(), spec, made, segment)
        return PlacedTensor.wrap(value, self._device, self.operate)

    def _checked(self, tensor: PlacedTensor) -> Value:
        if tensor.maker is not self:
            raise ParallelError(OF_ANOTHER)
        memory.check_current(tensor.value)
        return tensor.value

    def adopt(self, tensor: PlacedTensor) -> PlacedTensor:
        """Return a tensor of another microbatch as one of this one, without its graph. Every rank calls it."""
        old = tensor.value
        local = old.local if old.owner == self._mailbox.rank else None
        return self.place(old.owner, TensorSpec(old.spec.shape, old.spec.dtype, False), local)

    def _move(self, value: Value, target: int) -> None:
        """Note a transfer on every rank; send the data on the owner, and receive it on the target."""
        if target in value.holders:
            return
        if value.flow is not None:
            # Only the owner has the parameter itself. Its gradient comes back from `target`, and the sums must be in
            # the order of the microbatches.
            shared = isinstance(value.made, nn.Parameter)
            ticket = self.visits.ticket(_BACKWARD, (id(value.made), target)) if shared else None
            self.tape.move(Move(value.anchor(), target, ticket))
        if self._mailbox.rank == value.owner:
            self._mailbox.send_tensor(target, value.serial, Purpose.VALUE, memory.lasting(value))
        elif self._mailbox.rank == target:
            value.local = self._mailbox.wait(value.serial, Purpose.VALUE, source=value.owner)
        value.holders.add(target)

    def _run_here(self, run: Run, name: str, seed: int, ordered: bool, function: Callable[[], Any]) -> Any:
        """Run the call with real tensors and its own random numbers; if `ordered`, after the previous microbatch."""
        if ordered:
            run.ticket = self.visits.ticket(_BACKWARD, name)
            ticket = self.visits.ticket(_FORWARD, name)
            self._mailbox.await_ticket(ticket)
        restore = reseed(seed)
        # `inside(None)`, written out because every call comes here and a context manager costs time.
        before, _thread.microbatch = current(), None
        try:
            result = function()
        except Exception as error:
            if ordered:
                # For the report to the other ranks, which have no traceback of this rank.
                note_module(error, name)
            raise
        finally:
            _thread.microbatch = before
            restore()
        if ordered:
            self._mailbox.pass_ticket(ticket)
        return result

    def _share_shapes(self, name: str, known: Any, serial: int, shapes: Any) -> None:
        if known is None:
            for peer in self._peers:
                self._mailbox.send_object(peer, serial, Purpose.SHAPES, shapes)
        elif known != shapes:
            # The peers have continued with the shapes they knew, so this step cannot succeed.
            raise ParallelError(
                f"{name} returned other shapes than before for inputs of the same shapes: now {shapes}, before {known}."
                " The other ranks cannot foresee shapes that depend on data: pad them to a fixed shape, or keep the"
                " operation inside a module of one partition."
            )

    def _wrap(
        self, segment: Segment, run: Run, shapes: Any, made: Sequence[torch.Tensor], arguments: Sequence[Any]
    ) -> Any:
        """Return the result with placed tensors in it; note the run on the tape if gradients flow through it."""
        # In the order of the leaves, as `made` is. On other ranks `made` is empty, and the tensors have no data.
        remaining = iter(made)
        outputs: list[Flow] = []
        results: list[Value] = []

        def place(leaf: Any) -> Any:
            if not isinstance(leaf, TensorSpec):
                return leaf
            placed = self.place(segment.rank, leaf, next(remaining, None), segment)
            results.append(placed.value)
            if placed.value.flow is not None:
                outputs.append(placed.value.flow)
            return placed

        result = replace_leaves(shapes, place)
        if outputs:
            run.outputs = outputs
            self.tape.add(segment, run)
        for leaf in arguments if self.kept.parameters else ():
            if isinstance(leaf, PlacedTensor):
                self.kept.note_use(leaf.value.parameter, differentiated=bool(outputs))
        if made:
            memory.link(arguments, results)
        return result if self.outward is None else self.outward.put(result)

    def _start_of(self, value: Value, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Return the scaled gradient that backward starts from, on the owner of the value; None on other ranks."""
        if isinstance(gradient, PlacedTensor):
            self._move(gradient.value, value.owner)
            gradient = gradient.value.local
        if value.owner != self._mailbox.rank:
            return None
        assert value.local is not None
        return start_gradient(value.local, gradient) * self._scale

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial
