"""One microbatch on one rank: runs each call where it belongs, and keeps the tape.

Two rules place a call. A module's call runs on the rank that owns the module; any other operation runs where most of
its data already is. Inputs that are elsewhere move there, straight from their owner; nothing else moves.

The ranks that do not run a call need the shapes of its results. The one that does sends them during the first step in
which a call is seen with such inputs; from the next step on they are known (`ShapeBook`), and nobody waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.divergence import EVERYWHERE, Call
from herringbone_parallel.core.structure import leaves_of, replace_leaves
from herringbone_parallel.torch.model_parallel.failures import note_module
from herringbone_parallel.torch.model_parallel.runtime.deferral import Deferral
from herringbone_parallel.torch.model_parallel.runtime.mailbox import Post
from herringbone_parallel.torch.model_parallel.runtime.modes import thread_modes
from herringbone_parallel.torch.model_parallel.runtime.operations import operate, operate_inside
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor, Value
from herringbone_parallel.torch.model_parallel.runtime.randomness import branch, seed_of, start_stream
from herringbone_parallel.torch.model_parallel.runtime.run_token import BACKWARD, FORWARD, Turn
from herringbone_parallel.torch.model_parallel.runtime.shapes import ShapeBook, TensorSpec, shapes_of
from herringbone_parallel.torch.model_parallel.runtime.tape import Entrance, Flow, Move, Run, Segment, Tape
from herringbone_parallel.torch.model_parallel.runtime.transport import Purpose

# On a parameter of a partitioned model: the pipeline rank it lives on.
OWNER_ATTRIBUTE = "_smp_owner"

_here = threading.local()


def current() -> Microbatch | None:
    """Return the microbatch this thread runs, None outside a step and inside a module's own code."""
    microbatch: Microbatch | None = getattr(_here, "microbatch", None)
    return microbatch


@contextmanager
def inside(microbatch: Microbatch | None) -> Iterator[None]:
    """Make this the thread's microbatch for a `with` block; None is the inside of a module that runs on one rank."""
    before = current()
    _here.microbatch = microbatch
    try:
        yield
    finally:
        _here.microbatch = before


class Microbatch:
    """The state of one microbatch; entered by its thread while the user's step function runs.

    `scale` multiplies the gradients that `backward` starts from: 1 / microbatches averages over them. With a
    `deferral`, backward leaves the gradients of parameters to it.
    """

    def __init__(
        self,
        post: Post,
        partitions: int,
        device: torch.device,
        book: ShapeBook,
        *,
        scale: float,
        seed: int,
        deferral: Deferral | None = None,
    ) -> None:
        # Applied to the code of each module before it runs, in a part of the forward that is checkpointed.
        self.wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
        self._post = post
        self._tape = Tape(deferral)
        self._peers = [rank for rank in range(partitions) if rank != post.rank]
        self._device = device
        self._book = book
        self._scale = scale
        self._seed_of_calls = seed
        self._serial = 0
        # What was called, and on which rank: the same on every rank.
        self.trace: list[Call] = []
        self._parameters: dict[int, PlacedTensor] = {}
        self._visits: dict[tuple[int, Hashable], int] = {}
        self._seeded: dict[str, int] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be this thread's microbatch, with its own stream of random numbers."""
        with inside(self):
            start_stream(self._seed_of_calls)
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

        `target` is the pipeline rank, or None for the rank that holds most of the inputs. Without a placed input and
        without a target the function runs on every rank alike. `name` is for messages; calls of one `identity` (the
        name, if not given) return the same shapes for inputs of the same shapes. Random numbers are drawn from `seed`,
        by default that of the name.
        """
        leaves: list[Any] = []
        values: dict[int, Value] = {}

        def note(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                leaf = self.place_parameter(leaf)
                if isinstance(leaf, PlacedTensor):
                    values[leaf.value.serial] = leaf.value
            leaves.append(leaf)
            return leaf

        args, kwargs = replace_leaves((args, kwargs), note)
        if target is None and not values:
            return function(*args, **kwargs)
        home = target if target is not None else _most_bytes(values.values())
        self.trace.append((name, home))
        if seed is None:
            seed = self.seed(name)
        call = (identity or name, home, thread_modes(), tuple(_describe(leaf) for leaf in leaves))
        for value in values.values():
            self._move(value, home)
        known = self._book.get(call)
        serial = self._next_serial()
        segment = self._tape.segment(home)
        run = Run([value.flow for value in values.values() if value.flow is not None], ())
        made: Sequence[torch.Tensor] = ()
        if home == self._post.rank:
            # Gradients of parameters, and running statistics, add up in the order of the microbatches.
            ordered = target is not None or any(isinstance(value.local, nn.Parameter) for value in values.values())
            enter = partial(_enter, segment)
            real = partial(function, *replace_leaves(args, enter), **replace_leaves(kwargs, enter))
            result = self._run_here(run, name, seed, ordered, real)
            made = [leaf for leaf in leaves_of(result) if isinstance(leaf, torch.Tensor)]
            shapes = shapes_of(result)
            self._tell_shapes(name, known, serial, shapes)
        else:
            shapes = known if known is not None else self._post.wait(serial, Purpose.SHAPES, source=home)
        if known is None:
            self._book.learn(call, shapes)
        return self._wrap(segment, run, shapes, made)

    def backward(
        self, tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], *, retain: bool
    ) -> None:
        """Run the backward of everything the tensors depend on, when the schedule says so."""
        self.trace.append(("model.backward", EVERYWHERE))
        self._post.enter_backward()
        seeds: list[tuple[Flow, torch.Tensor | None]] = []
        # Those in a graph that autograd knows whole; they may share it, so they go together.
        plain: list[tuple[torch.Tensor, torch.Tensor]] = []
        for tensor, gradient in zip(tensors, gradients, strict=True):
            if not tensor.requires_grad:
                raise ParallelError("backward() of a tensor that depends on no parameter that requires a gradient")
            if isinstance(tensor, PlacedTensor):
                seeds.append((tensor.value.anchor(), self._seed(tensor.value, gradient)))
            else:
                plain.append((tensor, _start(tensor, gradient) * self._scale))
        if plain:
            torch.autograd.backward([t for t, _ in plain], [g for _, g in plain], retain_graph=retain)
        # Each rank goes its own part of the way back; what it does to a parameter there is no call of the user's.
        with inside(None):
            self._tape.backward(seeds, self._post, retain=retain)

    def fetch(self, tensor: PlacedTensor) -> torch.Tensor:
        """Return the data, detached, on every rank of the pipeline."""
        value = tensor.value
        if value.owner == self._post.rank:
            assert value.local is not None
            for peer in self._peers:
                if peer not in value.holders:
                    self._post.send_tensor(peer, value.serial, Purpose.OUTPUT, value.local)
        elif value.local is None:
            value.local = self._post.wait(value.serial, Purpose.OUTPUT, source=value.owner)
        value.holders.update((self._post.rank, *self._peers))
        return value.local

    def operate(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation on placed tensors of this microbatch."""
        if current() is self:
            return operate(self, func, args, kwargs)
        return operate_inside(func, args, kwargs)

    def place_parameter(self, leaf: Any) -> Any:
        """Return the placed tensor for a parameter that lives on one rank; anything else as it is."""
        owner = getattr(leaf, OWNER_ATTRIBUTE, None) if isinstance(leaf, nn.Parameter) else None
        if owner is None:
            return leaf
        placed = self._parameters.get(id(leaf))
        if placed is None:
            local = leaf if owner == self._post.rank else None
            placed = self._parameters[id(leaf)] = self._place(owner, TensorSpec.of(leaf), local)
        return placed

    def _place(
        self, owner: int, spec: TensorSpec, made: torch.Tensor | None, segment: Segment | None = None
    ) -> PlacedTensor:
        value = Value(owner, self._next_serial(), spec, made, segment)
        return PlacedTensor.wrap(value, self._device, self.operate)

    def _move(self, value: Value, target: int) -> None:
        if target in value.holders:
            return
        if value.flow is not None:
            shared = isinstance(value.made, nn.Parameter)
            turn = self._turn(BACKWARD, (id(value.made), target)) if shared else None
            self._tape.move(Move(value.anchor(), target, turn))
        if self._post.rank == value.owner:
            assert value.local is not None
            self._post.send_tensor(target, value.serial, Purpose.VALUE, value.local)
        elif self._post.rank == target:
            value.local = self._post.wait(value.serial, Purpose.VALUE, source=value.owner)
        value.holders.add(target)

    def _run_here(self, run: Run, name: str, seed: int, ordered: bool, function: Callable[[], Any]) -> Any:
        """Run the call with real tensors, in its turn and with its own random numbers."""
        if ordered:
            run.turn = self._turn(BACKWARD, name)
            turn = self._turn(FORWARD, name)
            self._post.await_turn(turn)
        restore = branch(seed)
        before, _here.microbatch = current(), None
        try:
            result = function()
        except Exception as error:
            if ordered:
                note_module(error, name)
            raise
        finally:
            _here.microbatch = before
            restore()
        if ordered:
            self._post.pass_turn(turn)
        return result

    def seed(self, name: str) -> int:
        """Return the seed of the next call of that name; every rank has to ask, whoever needs it."""
        visit = self._seeded[name] = self._seeded.get(name, 0) + 1
        return seed_of(self._seed_of_calls, name, visit)

    def _turn(self, phase: int, what: Hashable) -> Turn:
        visit = self._visits[phase, what] = self._visits.get((phase, what), 0) + 1
        return Turn(phase, what, visit)

    def _tell_shapes(self, name: str, known: Any, serial: int, shapes: Any) -> None:
        if known is None:
            for peer in self._peers:
                self._post.send_object(peer, serial, Purpose.SHAPES, shapes)
        elif known != shapes:
            raise ParallelError(
                f"{name} returned other shapes than before for inputs of the same shapes: now {shapes}, before {known}."
                " The other ranks cannot foresee shapes that depend on data: pad them to a fixed shape, or keep the"
                " operation inside a module of one partition."
            )

    def _wrap(self, segment: Segment, run: Run, shapes: Any, made: Sequence[torch.Tensor]) -> Any:
        """Return the result with placed tensors in it, and note the run on the tape if gradients flow through it."""
        remaining = iter(made)
        outputs: list[Flow] = []

        def place(leaf: Any) -> Any:
            if not isinstance(leaf, TensorSpec):
                return leaf
            placed = self._place(segment.rank, leaf, next(remaining, None), segment)
            if placed.value.flow is not None:
                outputs.append(placed.value.flow)
            return placed

        result = replace_leaves(shapes, place)
        if outputs:
            run.outputs = outputs
            self._tape.add(segment, run)
        return result

    def _seed(self, value: Value, gradient: torch.Tensor | None) -> torch.Tensor | None:
        if isinstance(gradient, PlacedTensor):
            self._move(gradient.value, value.owner)
            gradient = gradient.value.local
        if value.owner != self._post.rank:
            return None
        assert value.local is not None
        return _start(value.local, gradient) * self._scale

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial


def _start(tensor: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    if gradient is not None:
        return gradient
    if tensor.numel() != 1:
        raise ParallelError(
            f"backward() of a tensor of shape {list(tensor.shape)} needs a gradient of that shape;"
            " only a scalar has the obvious one"
        )
    return torch.ones_like(tensor)


def _enter(segment: Segment, leaf: Any) -> Any:
    """Return the tensor that stands for a placed one in the segment's graph; anything else as it is."""
    if not isinstance(leaf, PlacedTensor):
        return leaf
    value = leaf.value
    if value.flow is None or isinstance(value.local, nn.Parameter) or not torch.is_grad_enabled():
        return value.local
    if value.flow.segment is segment:
        return value.made
    known = segment.entrances.get(value.serial)
    if known is None:
        assert value.local is not None
        start = value.local.detach().requires_grad_()
        known = segment.entrances[value.serial] = Entrance(value.anchor(), start, _Alias.apply(start))  # type: ignore[no-untyped-call]
    return known.tensor


class _Alias(torch.autograd.Function):
    """The same data, no leaf of the graph: a module may write into its input, as `nn.ReLU(inplace=True)` does."""

    @staticmethod
    def forward(_: Any, leaf: torch.Tensor) -> torch.Tensor:
        alias = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        return alias.set_(leaf.untyped_storage(), leaf.storage_offset(), leaf.shape, leaf.stride())

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _most_bytes(values: Iterable[Value]) -> int:
    """Return the rank with most of the bytes; among equals, the one whose value is newest."""
    weight: dict[int, tuple[int, int]] = {}
    for value in values:
        for holder in value.holders:
            total, newest = weight.get(holder, (0, 0))
            weight[holder] = (total + value.bytes, max(newest, value.serial if holder == value.owner else 0))
    return max(weight, key=lambda rank: (weight[rank], -rank))


def _describe(leaf: Any) -> Hashable:
    if isinstance(leaf, PlacedTensor):
        return leaf.value.spec
    if isinstance(leaf, torch.Tensor):
        return TensorSpec.of(leaf)
    try:
        hash(leaf)
    except TypeError:
        return type(leaf).__qualname__
    return (type(leaf), leaf)
