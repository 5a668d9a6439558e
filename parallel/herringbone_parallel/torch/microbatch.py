"""One microbatch on one rank: runs each call where it belongs, and keeps the tape.

Two rules place a call. A module's call runs on the rank that owns the module; any other operation runs where most of its
data already is. In both cases the inputs that are elsewhere move there, straight from their owner; nothing else moves.

The ranks that do not run a call need the shapes of its results. The one that does sends them during the first step in
which a call is seen with such inputs; from the next step on they are known (`ShapeBook`), and nobody waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from herringbone_parallel.core.structure import leaves_of, replace_leaves
from herringbone_parallel.torch.baton import BACKWARD, FORWARD, Turn
from herringbone_parallel.torch.modes import thread_modes
from herringbone_parallel.torch.placed import PlacedTensor, TensorSpec, Value
from herringbone_parallel.torch.post import Post
from herringbone_parallel.torch.tape import Move, Run, Tape
from herringbone_parallel.torch.transport import Purpose
from herringbone_spec.errors import ParallelError

# On a parameter of a partitioned model: the pipeline rank it lives on.
OWNER_ATTRIBUTE = "_smp_owner"

_here = threading.local()


def current() -> Microbatch | None:
    """Return the microbatch this thread runs, None outside a step and inside a module's own code."""
    microbatch: Microbatch | None = getattr(_here, "microbatch", None)
    return microbatch


_MAX_KNOWN = 10_000


class ShapeBook:
    """What each kind of call returned, learnt in one step and relied on from the next.

    Learning takes effect between steps, so that at each call every rank agrees on whether shapes will be sent.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}
        self._learnt: dict[Hashable, Any] = {}
        self._varying: set[Hashable] = set()

    def get(self, call: Hashable) -> Any:
        return self._known.get(call)

    def learn(self, call: Hashable, shapes: Any) -> None:
        if any(leaf is not None and not isinstance(leaf, _Spec) for leaf in leaves_of(shapes)):
            # A number or a string may be another one next time.
            self._varying.add(call)
        elif call in self._learnt and self._learnt[call] != shapes:
            self._varying.add(call)
        else:
            self._learnt[call] = shapes

    def turn_page(self) -> None:
        """Rely, from now on, on what was learnt."""
        for call, shapes in self._learnt.items():
            if call not in self._varying:
                self._known[call] = shapes
        self._learnt.clear()
        if len(self._known) > _MAX_KNOWN:
            # Calls with ever-changing numbers among their arguments; the same on every rank, as the contents are.
            self._known.clear()
            self._varying.clear()


class _Spec:
    """A `TensorSpec` as a leaf: named tuples would be taken apart."""

    __slots__ = ("spec",)

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Spec) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)


class Microbatch:
    """The state of one microbatch; entered by its thread while the user's step function runs.

    `scale` multiplies the gradients that `backward` starts from: 1 / microbatches averages over them.
    """

    def __init__(self, post: Post, partitions: int, device: torch.device, book: ShapeBook, scale: float) -> None:
        self.post = post
        self.tape = Tape()
        self._peers = [rank for rank in range(partitions) if rank != post.rank]
        self._device = device
        self._book = book
        self._scale = scale
        self._serial = 0
        self._parameters: dict[int, PlacedTensor] = {}
        self._visits: dict[tuple[int, Hashable], int] = {}

    def __enter__(self) -> Microbatch:
        _here.microbatch = self
        return self

    def __exit__(self, *_: object) -> None:
        _here.microbatch = None

    def call(
        self,
        name: str,
        target: int | None,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        identity: Hashable = None,
    ) -> Any:
        """Run `function` on one rank and return what it returned, with its tensors placed there.

        `target` is the pipeline rank, or None for the rank that holds most of the inputs. Without a placed input and
        without a target the function runs on every rank alike. `name` is for messages; calls of one `identity` (the
        name, if not given) return the same shapes for inputs of the same shapes.
        """
        args, kwargs = replace_leaves((args, kwargs), self._place_parameter)
        leaves = leaves_of((args, kwargs))
        values = self._placed_inputs(leaves)
        owned = target is not None
        if target is None:
            if not values:
                return function(*args, **kwargs)
            target = _most_bytes(values)
        for value in values:
            self._move(value, target)
        kind = (identity or name, target, thread_modes(), tuple(_describe(leaf) for leaf in leaves))
        known = self._book.get(kind)
        serial = self._next_serial()
        if target == self.post.rank:
            shapes, locals_, run = self._run_here(name, owned, values, function, args, kwargs)
            self._tell_shapes(name, kind, known, serial, shapes)
        else:
            shapes = known if known is not None else self.post.wait(serial, Purpose.SHAPES, source=target)
            locals_, run = None, Run(target, values, ())
        if known is None:
            self._book.learn(kind, shapes)
        return self._wrap(shapes, locals_, run)

    def operate(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation of the user's code on placed tensors."""
        name = getattr(func, "__name__", str(func))
        if current() is not self:
            return self._operate_inside(func, name, args, kwargs)
        if func in _NEEDS_DATA:
            return func(*self._with_data(args), **self._with_data(kwargs))
        if func is torch.Tensor.__iter__:
            return iter(self.operate(torch.Tensor.unbind, (args[0], 0), {}))
        if func in _REFUSED:
            raise ParallelError(f"Tensor.{name} cannot be used on a tensor of a distributed model: {_REFUSED[func]}")
        if kwargs.get("out") is not None:
            raise ParallelError(f"{name}(..., out=) is not supported on tensors of a distributed model")
        if _is_in_place(name):
            return self._operate_in_place(func, name, args, kwargs)
        return self.call(f"torch.{name}", None, func, args, kwargs, identity=func)

    def backward(self, tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
        """Run the backward of everything the tensors depend on, when the schedule says so."""
        self.post.enter_backward()
        seeds: list[tuple[Value, torch.Tensor | None]] = []
        for tensor, gradient in zip(tensors, gradients, strict=True):
            if not isinstance(tensor, PlacedTensor):
                start = torch.ones_like(tensor) if gradient is None else gradient
                tensor.backward(start * self._scale)
            elif not tensor.value.spec.requires_grad:
                raise ParallelError(
                    "backward() of a tensor that does not depend on any parameter that requires a gradient"
                )
            else:
                seeds.append((tensor.value, self._seed(tensor.value, gradient)))
        self.tape.backward(seeds, self.post)

    def fetch(self, tensor: PlacedTensor) -> torch.Tensor:
        """Return the data, detached, on every rank of the pipeline."""
        value = tensor.value
        if value.owner == self.post.rank:
            assert value.local is not None
            for peer in self._peers:
                if peer not in value.holders:
                    self.post.send_tensor(peer, value.serial, Purpose.OUTPUT, value.local)
        elif value.local is None:
            value.local = self.post.wait(value.serial, Purpose.OUTPUT, source=value.owner)
        value.holders = {self.post.rank, *self._peers}
        return value.local

    def _place_parameter(self, leaf: Any) -> Any:
        """Return the placed tensor for a parameter that lives on one rank; anything else as it is."""
        owner = getattr(leaf, OWNER_ATTRIBUTE, None) if isinstance(leaf, torch.nn.Parameter) else None
        if owner is None:
            return leaf
        placed = self._parameters.get(id(leaf))
        if placed is None:
            local = leaf if owner == self.post.rank else None
            value = Value(owner, self._next_serial(), TensorSpec.of(leaf), local)
            placed = self._parameters[id(leaf)] = PlacedTensor.wrap(value, self._device, self.operate)
        return placed

    def _placed_inputs(self, leaves: Sequence[Any]) -> list[Value]:
        found: dict[int, Value] = {}
        for leaf in leaves:
            if isinstance(leaf, PlacedTensor):
                found[leaf.value.serial] = leaf.value
        return list(found.values())

    def _move(self, value: Value, target: int) -> None:
        if target in value.holders:
            return
        if value.spec.requires_grad:
            self.tape.add(Move(value, target))
        if self.post.rank == value.owner:
            assert value.local is not None
            self.post.send_tensor(target, value.serial, Purpose.VALUE, value.local)
        elif self.post.rank == target:
            value.local = self.post.wait(value.serial, Purpose.VALUE, source=value.owner)
        value.holders.add(target)

    def _run_here(
        self, name: str, owned: bool, values: Sequence[Value], function: Callable[..., Any], args: Any, kwargs: Any
    ) -> tuple[Any, list[torch.Tensor], Run]:
        leaf_of = {value.serial: _as_leaf(value) for value in values}

        def real(leaf: Any) -> Any:
            return leaf_of[leaf.value.serial] if isinstance(leaf, PlacedTensor) else leaf

        what = name if owned or any(isinstance(leaf, torch.nn.Parameter) for leaf in leaf_of.values()) else None
        with self.post.turn(self._turn(FORWARD, what)):
            _here.microbatch = None
            try:
                result = function(*replace_leaves(args, real), **replace_leaves(kwargs, real))
            finally:
                _here.microbatch = self
        roots = [leaf for leaf in leaves_of(result) if isinstance(leaf, torch.Tensor)]
        shapes = replace_leaves(
            result, lambda leaf: _Spec(TensorSpec.of(leaf)) if isinstance(leaf, torch.Tensor) else leaf
        )
        leaves = [_gradient_leaf(leaf_of[value.serial]) for value in values]
        return shapes, roots, Run(self.post.rank, values, (), leaves, roots, self._turn(BACKWARD, what))

    def _turn(self, phase: int, what: Hashable) -> Turn | None:
        if what is None:
            return None
        visit = self._visits[phase, what] = self._visits.get((phase, what), 0) + 1
        return Turn(phase, what, visit)

    def _tell_shapes(self, name: str, kind: Hashable, known: Any, serial: int, shapes: Any) -> None:
        if known is None:
            for peer in self._peers:
                self.post.send_object(peer, serial, Purpose.SHAPES, shapes)
        elif known != shapes:
            raise ParallelError(
                f"{name} returned other shapes than before for inputs of the same shapes:"
                f" {_show(shapes)}, before {_show(known)}. Shapes that depend on data cannot be foreseen by the other"
                " ranks; pad them to a fixed shape, or keep the operation inside a module of one partition."
            )

    def _wrap(self, shapes: Any, roots: Sequence[torch.Tensor] | None, run: Run) -> Any:
        outputs: list[Value] = []

        def place(leaf: Any) -> Any:
            if not isinstance(leaf, _Spec):
                return leaf
            local = None if roots is None else roots[len(outputs)].detach()
            value = Value(run.rank, self._next_serial(), leaf.spec, local)
            outputs.append(value)
            return PlacedTensor.wrap(value, self._device, self.operate)

        result = replace_leaves(shapes, place)
        run.outputs = outputs
        if any(value.spec.requires_grad for value in outputs):
            self.tape.add(run)
        return result

    def _operate_in_place(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `x.add_(y)` as `x = x.clone().add_(y)`: the name `x` then stands for the new value."""
        target = args[0]
        if not isinstance(target, PlacedTensor):
            raise ParallelError(
                f"{name} would write a value of one rank into a tensor that every rank has its own copy of;"
                " use the operation that returns a new tensor"
            )

        def on_copy(first: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
            copy = first.clone()
            func(copy, *rest, **named)
            return copy

        changed = self.call(f"torch.{name}", None, on_copy, args, kwargs, identity=func)
        target.value = changed.value
        return target

    def _operate_inside(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Serve a placed tensor that a module kept and now uses in its own code, where no other rank takes part."""

        def local(leaf: Any) -> Any:
            if not isinstance(leaf, PlacedTensor):
                return leaf
            if leaf.value.local is None or current() is not None:
                raise ParallelError(
                    f"torch.{name}: a tensor of pipeline rank {leaf.value.owner} is used where only one rank runs."
                    " Pass it to the module as an argument, so that it can be moved."
                )
            return leaf.value.local

        return func(*replace_leaves(args, local), **replace_leaves(kwargs, local))

    def _with_data(self, structure: Any) -> Any:
        return replace_leaves(structure, lambda leaf: self.fetch(leaf) if isinstance(leaf, PlacedTensor) else leaf)

    def _seed(self, value: Value, gradient: torch.Tensor | None) -> torch.Tensor | None:
        if value.owner != self.post.rank:
            return None
        assert value.local is not None
        if isinstance(gradient, PlacedTensor):
            gradient = gradient.value.local
        if gradient is None:
            if value.local.numel() != 1:
                raise ParallelError(
                    f"backward() of a tensor of shape {tuple(value.spec.shape)} needs a gradient of that shape;"
                    " only a scalar has the obvious one"
                )
            gradient = torch.ones_like(value.local)
        return gradient * self._scale

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial


def _as_leaf(value: Value) -> torch.Tensor:
    assert value.local is not None
    if isinstance(value.local, torch.nn.Parameter):
        return value.local
    leaf = value.local.detach()
    return leaf.requires_grad_() if value.spec.requires_grad and torch.is_grad_enabled() else leaf


def _gradient_leaf(leaf: torch.Tensor) -> torch.Tensor | None:
    """Return the leaf when its gradient is to be taken from it; a parameter keeps its own."""
    return leaf if leaf.requires_grad and not isinstance(leaf, torch.nn.Parameter) else None


def _most_bytes(values: Sequence[Value]) -> int:
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
        return type(leaf)
    return (type(leaf), leaf)


def _is_in_place(name: str) -> bool:
    if name in ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__iand__", "__ior__"):
        return True
    return name.endswith("_") and not name.endswith("__")


def _show(shapes: Any) -> str:
    return str([list(leaf.spec.shape) if isinstance(leaf, _Spec) else leaf for leaf in leaves_of(shapes)])


# These give plain Python, so every rank needs the data itself.
_NEEDS_DATA = {
    torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__bool__, torch.Tensor.__int__,
    torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.__format__, torch.Tensor.__contains__,
    torch.Tensor.__array__, torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose,
    torch.is_nonzero, torch.Tensor.is_nonzero,
}  # fmt: skip

_REFUSED = {
    torch.Tensor.backward: "call model.backward(loss) instead, so that the schedule can place it",
    torch.Tensor.requires_grad_: "decide it on the inputs of the model",
    torch.Tensor.register_hook: "register a hook on the module instead",
}
