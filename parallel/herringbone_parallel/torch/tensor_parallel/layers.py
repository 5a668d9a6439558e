"""Makes one module a shared one: its class reads local parameters, and its forward exchanges what the ranks lack.

The module keeps its name, its attributes and its code. It gets a subclass of its own class, with a property for each of
its parameters. `module._parameters`, from which state dicts, optimizers and `fully_shard` read, has what the storage
keeps. `module.weight` is a plain tensor inside a forward: this rank's part for the module's own code, the whole for the
code of other modules. Outside of forwards it is that parameter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from herringbone_parallel.torch.tensor_parallel.attention import attend
from herringbone_parallel.torch.tensor_parallel.operations import Peers, enter, gather, leave, take
from herringbone_parallel.torch.tensor_parallel.plans import Kind

Read = Callable[[torch.Tensor], torch.Tensor]
# Instance attributes: the readers by parameter, and the number of forwards of the module that run now.
_READERS = "_tensor_parallel_readers"
_COMPUTING = "_tensor_parallel_computing"
_AS_IT_IS = "_tensor_parallel_as_it_is"


class _AttentionCall(NamedTuple):
    """The arguments of `nn.MultiheadAttention.forward`."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    key_padding_mask: torch.Tensor | None = None
    need_weights: bool = True
    attn_mask: torch.Tensor | None = None
    average_attn_weights: bool = True
    # A hint about the mask, which torch demands with it.
    is_causal: bool = False


def is_conv1d(module: nn.Module) -> bool:
    """Say whether this is Hugging Face's `Conv1D`, a linear layer whose weight is transposed."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


class Running:
    """Counts the forwards of a model's modules that run now."""

    def __init__(self) -> None:
        self.count = 0


class Reader(NamedTuple):
    """The functions that read a parameter: `inside` for its own module's code, `outside` for other modules' code."""

    inside: Read
    outside: Read


def become(
    module: nn.Module,
    readers: dict[str, Reader],
    running: Running,
    forward: Callable[..., Any] | None = None,
) -> None:
    """Let the module's parameters be read by readers, and run `forward(module, original, *args)` in its place."""
    cls = type(module)
    original = cls.forward
    # Activation checkpointing gives the instance a forward, which would hide that of the class.
    own = module.__dict__.pop("forward", None)
    if own is not None:
        original = functools.wraps(own)(lambda _, *args, **kwargs: own(*args, **kwargs))

    # With the signature of the original, which Hugging Face's Trainer reads.
    @functools.wraps(original)
    def run(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # Counted, because a module may call itself, and activation checkpointing ends a forward by an exception.
        self.__dict__[_COMPUTING] += 1
        running.count += 1
        try:
            if forward is None:
                return original(self, *args, **kwargs)
            return forward(self, original.__get__(self), *args, **kwargs)
        finally:
            running.count -= 1
            self.__dict__[_COMPUTING] -= 1

    members: dict[str, Any] = {name: _property(name, running) for name in readers}
    # Under the same name: Hugging Face and fully_shard find layers by the names of their classes.
    members |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__, "forward": run}
    module.__class__ = type(cls.__name__, (cls,), members)
    # A module may become shared, and then the border of a region.
    module.__dict__[_READERS] = {**module.__dict__.get(_READERS, {}), **readers}
    module.__dict__.setdefault(_COMPUTING, 0)


def show_as_it_is(module: nn.Module) -> None:
    """Let code outside of the module's forward read each parameter itself, as `FullyShardedDataParallel` has to."""
    module.__dict__[_AS_IT_IS] = True


def _property(name: str, running: Running) -> property:
    def read(self: nn.Module) -> torch.Tensor | None:
        # `FullyShardedDataParallel` takes the parameter away, and puts a tensor there for the forward.
        if name not in self.__dict__ and name not in self._parameters:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        parameter: torch.Tensor | None = self.__dict__[name] if name in self.__dict__ else self._parameters[name]
        # Outside of every forward, the parameter itself: `fully_shard` compares it with what it has put there.
        if parameter is None or not running.count:
            return parameter
        reader: Reader = self.__dict__[_READERS][name]
        if self.__dict__[_COMPUTING]:
            return reader.inside(parameter)
        return parameter if self.__dict__.get(_AS_IT_IS) else reader.outside(parameter)

    def write(self: nn.Module, value: torch.Tensor | None) -> None:
        self.__dict__[name] = value

    def delete(self: nn.Module) -> None:
        del self.__dict__[name]

    return property(read, write, delete)


def _check_ids(ids: torch.Tensor, vocabulary: int) -> None:
    """Raise `IndexError`, as torch's embedding does, for ids that are in no rank's part. All ranks have the same ids.

    On a device the ids are not read: the computation would have to wait for them.
    """
    # Subclasses, such as those of a tracer, may have no values.
    if type(ids) is torch.Tensor and ids.device.type == "cpu" and ids.numel():
        lowest, highest = (int(end) for end in torch.aminmax(ids))
        if lowest < 0 or highest >= vocabulary:
            outside = lowest if lowest < 0 else highest
            raise IndexError(f"index out of range in self: {outside} in an embedding of {vocabulary} rows")


def forward_of(kind: Kind, peers: Peers) -> Callable[..., Any] | None:
    """Return the forward of a module of this kind; None if it is the module's own."""

    def colwise(module: nn.Module, original: Callable[..., Any], x: torch.Tensor) -> Any:  # noqa: ARG001
        return original(enter(x, peers))

    def colwise_gather(module: nn.Module, original: Callable[..., Any], x: torch.Tensor) -> Any:
        # An embedding's input are numbers, which have no gradient.
        return gather(original(x if isinstance(module, nn.Embedding) else enter(x, peers)), peers)

    def rowwise(module: Any, original: Callable[..., Any], x: torch.Tensor) -> Any:  # noqa: ARG001
        weight = module.weight if is_conv1d(module) else module.weight.t()
        total = leave(x @ weight, peers)
        # After the sum, to which every rank would add it otherwise.
        return total if module.bias is None else total + module.bias

    def rowwise_take(module: nn.Module, original: Callable[..., Any], x: torch.Tensor) -> Any:
        return rowwise(module, original, take(x, peers))

    def embedding_rowwise(module: Any, original: Callable[..., Any], ids: torch.Tensor, **options: Any) -> Any:
        size = module.weight.shape[0]
        _check_ids(ids, size * peers.degree)
        local = ids - peers.index * size
        elsewhere = (local < 0) | (local >= size)
        rows = original(local.masked_fill(elsewhere, 0), **options)
        return leave(rows.masked_fill(elsewhere.unsqueeze(-1), 0), peers)

    def attention(module: nn.MultiheadAttention, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
        call = _AttentionCall(*args, **kwargs)
        weights = ("mean" if call.average_attn_weights else "heads") if call.need_weights else None
        inputs, masks = (call.query, call.key, call.value), (call.key_padding_mask, call.attn_mask)
        return attend(module, peers, inputs, masks, weights)

    forwards: dict[Kind, Callable[..., Any]] = {
        Kind.COLWISE: colwise,
        Kind.COLWISE_GATHER: colwise_gather,
        Kind.PACKED_COLWISE: colwise,
        Kind.ROWWISE: rowwise,
        Kind.ROWWISE_TAKE: rowwise_take,
        Kind.EMBEDDING_ROWWISE: embedding_rowwise,
        Kind.ATTENTION: attention,
    }
    return forwards.get(kind)
