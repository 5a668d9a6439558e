"""Placed values: tensors that live on one rank of the pipeline, while every rank knows their shape.

Every rank runs the same step function. A module's result is a `PlacedTensor` on each rank: with data on the rank where
the module lives, without data on the others. torch passes any operation on it to `__torch_function__`, which runs the
operation where the data is.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.torch.model_parallel.runtime.regions import Memory, Write
from herringbone_parallel.torch.model_parallel.runtime.shapes import TensorSpec
from herringbone_parallel.torch.model_parallel.runtime.tape import Flow, Segment

if TYPE_CHECKING:
    from collections.abc import Callable

    Operation = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Value:
    """One value of one microbatch.

    owner     the pipeline rank that made it
    holders   the ranks that have its data by now; the set is the same on every rank, because all run the same calls
    local     the data, detached, if this rank has it
    made      on the owner, the same tensor with its autograd graph
    flow      the sum of its gradients; None when it needs none
    retained  whether the user reads its gradient; the same on every rank
    memory    the values that share its memory on this rank, as far as this rank knows; None if there are none
    missed    the write to one of them that would have changed this value in one process
    parameter the model's parameter that it is, or that has its data on another rank; None for any other value
    """

    __slots__ = (
        "__weakref__", "flow", "holders", "local", "made", "memory", "missed", "owner", "parameter", "retained",
        "serial", "spec",
    )  # fmt: skip

    def __init__(
        self, owner: int, serial: int, spec: TensorSpec, made: torch.Tensor | None, segment: Segment | None = None
    ) -> None:
        self.owner = owner
        self.serial = serial
        self.spec = spec
        self.made = made
        # A parameter is not detached: its gradient has to arrive at the parameter itself.
        self.local = made if made is None or isinstance(made, torch.nn.Parameter) else made.detach()
        self.holders = {owner}
        self.retained = False
        self.memory: Memory | None = None
        self.missed: Write | None = None
        self.parameter: torch.nn.Parameter | None = None
        self.flow = Flow(self, owner, serial, segment) if spec.requires_grad else None

    def anchor(self) -> Flow:
        """Return the flow, for gradients from outside the value's own graph."""
        # The tape keeps `root` only for values that are used outside their segment. All others are freed together with
        # the user's tensor.
        assert self.flow is not None
        self.flow.root = self.made
        return self.flow

    def end(self) -> None:
        """Drop the graph and keep the data: the microbatch has ended. A parameter stays itself."""
        if not isinstance(self.made, torch.nn.Parameter):
            self.made = self.local if self.made is not None else None

    @property
    def bytes(self) -> int:
        """The size of the data."""
        count = self.spec.dtype.itemsize
        for extent in self.spec.shape:
            count *= extent
        return count


# Reads of these are answered by the wrapper itself: shape, dtype and device type are the same on every rank.
_ATTRIBUTES: tuple[Any, ...] = tuple(
    getattr(torch.Tensor, name)
    for name in (
        "shape", "dtype", "device", "layout", "ndim", "itemsize", "requires_grad", "is_leaf", "is_cuda", "is_meta",
        "is_sparse", "is_quantized", "is_nested", "grad_fn",
    )
)  # fmt: skip
METADATA: set[Any] = {
    torch.Tensor.size, torch.Tensor.dim, torch.Tensor.ndimension, torch.Tensor.numel, torch.Tensor.nelement,
    torch.Tensor.element_size, torch.Tensor.is_floating_point, torch.Tensor.is_complex, torch.Tensor.is_signed,
    torch.Tensor.get_device, torch.Tensor.__len__, torch.Tensor.__hash__,
    torch.is_tensor, torch.is_floating_point, torch.is_complex, torch.numel,
    *(attribute.__get__ for attribute in _ATTRIBUTES),
}  # fmt: skip


IN_A_MODULE = "Make the call inside the forward of a module that is placed on one rank: there all of torch works."
TRANSFORMED = f"torch.vmap or torch.func of a tensor or a module of a distributed model. {IN_A_MODULE}"


class PlacedTensor(torch.Tensor):
    """A tensor whose data is on the pipeline rank `value.owner`; `operate` runs every operation on it."""

    value: Value
    operate: Operation

    @property
    def maker(self) -> Any:
        """The microbatch that made it."""
        return getattr(self.operate, "__self__", None)

    @staticmethod
    def wrap(value: Value, device: torch.device, operate: Operation) -> PlacedTensor:
        """Return the tensor that represents `value` in user code; `operate(func, args, kwargs)` runs its operations."""
        wrapper: PlacedTensor = torch.Tensor._make_wrapper_subclass(
            PlacedTensor,
            value.spec.shape,
            dtype=value.spec.dtype,
            device=device,
            requires_grad=value.spec.requires_grad,
        )
        wrapper.value = value
        wrapper.operate = operate
        return wrapper

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Without `DisableTorchFunctionSubclass` the call would come back here forever.
        if func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return _first_placed(args, kwargs or {}).operate(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            # Autograd detaches a wrapper that it receives. There is no data to detach.
            return args[0]
        raise ParallelError(
            f"{func} has reached a tensor of a distributed model inside a function of torch that runs its operations by"
            f" itself. {IN_A_MODULE}"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        # No data: fetching it needs a message from another rank, and a debug print rarely runs on all ranks.
        return f"PlacedTensor({self.value.spec}, on pipeline rank {self.value.owner})"


def _first_placed(args: Any, kwargs: dict[str, Any]) -> PlacedTensor:
    for leaf in leaves_of((args, kwargs)):
        if isinstance(leaf, PlacedTensor):
            return leaf
    raise AssertionError("__torch_function__ without a placed tensor")


def most_bytes(values: Iterable[Value]) -> int:
    """Return the rank with most of the bytes; among equals, the rank that made the newest value."""
    # By rank: bytes, and the serial of the newest value that it made. All ranks must come to the same answer, so the
    # last tie is broken by the rank's number.
    held: dict[int, tuple[int, int]] = {}
    for value in values:
        for holder in value.holders:
            total, newest = held.get(holder, (0, 0))
            held[holder] = (total + value.bytes, max(newest, value.serial if holder == value.owner else 0))
    return max(held, key=lambda rank: (held[rank], -rank))


def key_of(leaf: Any) -> Hashable:
    """Return a leaf's part in the identity of a call for the shape book."""
    if isinstance(leaf, PlacedTensor):
        return leaf.value.spec
    if isinstance(leaf, torch.Tensor):
        return TensorSpec.of(leaf)
    if isinstance(leaf, slice):
        # Before Python 3.12 a slice has no hash.
        return (slice, key_of(leaf.start), key_of(leaf.stop), key_of(leaf.step))
    if _by_identity(type(leaf)):
        # It equals only itself, so no later object can match. The book must not keep it alive: a model may pass an
        # object to its layers in which they leave tensors, such as the keys and values of transformers' `DynamicCache`.
        return weakref.ref(leaf)
    try:
        hash(leaf)
    except TypeError:
        return type(leaf).__qualname__
    return (type(leaf), leaf)


def _by_identity(kind: Any) -> bool:
    """Say whether an object of this type equals only itself, and can be referenced weakly."""
    return kind.__hash__ is object.__hash__ and bool(kind.__weakrefoffset__)
