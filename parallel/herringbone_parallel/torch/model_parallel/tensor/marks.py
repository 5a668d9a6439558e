"""Marks of the modules that the ranks of a tensor group share, and the classes that are registered for it.

`smp.tensor_parallelism` and `smp.set_tensor_parallelism` mark modules. `smp.DistributedModel` reads the marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel import state

Class = TypeVar("Class", bound=type[nn.Module])
Arguments = tuple[Any, Mapping[str, Any]]

# The attribute of a module with its `Mark`, and that with the arguments of its `__init__`, if its class is registered.
MARK_ATTRIBUTE = "_smp_tensor_parallelism"
_ARGUMENTS_ATTRIBUTE = "_smp_init_arguments"
# Settings of AWS's kernels, which its scripts pass. torch's kernels are used in any case, so they change no number.
_KERNELS = frozenset(
    {
        "attention_in_fp32", "distribute_embedding", "flash_attention", "fused_bias_gelu", "fused_dropout",
        "fused_softmax", "optimize", "query_key_layer_scaling",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """A module's mark: shared or not, with arguments for the distributed class that takes its place."""

    enabled: bool
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Registration:
    """A distributed class that takes the place of another, with functions that translate arguments and results."""

    dist_module: type[nn.Module]
    init_hook: Callable[..., Arguments] | None
    forward_hook: Callable[..., Arguments] | None
    return_hook: Callable[[Any], Any] | None


_registered: dict[type[nn.Module], Registration] = {}


@contextmanager
def tensor_parallelism(enabled: bool = True, **config: Any) -> Iterator[None]:
    """Let the ranks of a tensor group share the modules created inside the `with` block; the innermost block decides.

        with smp.tensor_parallelism():
            self.layers = nn.ModuleList(Block() for _ in range(12))

    `config` are arguments for the distributed class of a registered module; `fused_softmax` and `fused_bias_gelu` are
    accepted, because torch's kernels are used in any case. `smp.set_tensor_parallelism` explains the rest. Source: SMP
    v1, `smp.tensor_parallelism`.
    """
    before = nn.Module.__init__
    mark = Mark(enabled, _checked("smp.tensor_parallelism", config))

    def marked_init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        # Blocks inside this one set the mark last.
        self.__dict__[MARK_ATTRIBUTE] = mark

    # A block inside a block calls the outer one's first, so the inner mark replaces the outer.
    nn.Module.__init__ = marked_init  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__init__ = before  # type: ignore[method-assign]


def set_tensor_parallelism(module: nn.Module, enabled: bool = True, **config: Any) -> None:
    """Let the ranks of a tensor group share a module and all modules inside it, or, not `enabled`, leave them whole.

        smp.set_tensor_parallelism(model.encoder)
        smp.set_tensor_parallelism(model.encoder.embeddings, False)
        model = smp.DistributedModel(model)

    Shared are: layers of Hugging Face models with a tensor-parallel plan, torch's Transformer layers and
    `nn.MultiheadAttention`, classes registered by `smp.tp_register`; other `nn.Linear` and `nn.Embedding` layers one by
    one. A layer whose sizes the degree does not divide stays whole. The call has no effect when
    `tensor_parallel_degree` is 1. Raises `ParallelError` after `smp.DistributedModel`. Source: SMP v1,
    `smp.set_tensor_parallelism`.
    """
    library = state.get()
    if library.model is not None:
        raise ParallelError("smp.set_tensor_parallelism after smp.DistributedModel; call it before")
    mark = Mark(enabled, _checked("smp.set_tensor_parallelism", config))
    for inner in module.modules():
        inner.__dict__[MARK_ATTRIBUTE] = mark


def _checked(function: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for distributed classes: without settings of kernels. Refuse what no class computes."""
    if config.get("use_alibi"):
        raise ParallelError(f"{function}(use_alibi=True) is not available: no layer adds ALiBi's biases; leave it out")
    return {key: value for key, value in config.items() if key not in _KERNELS and key != "use_alibi"}


class tp_register:  # noqa: N801  SMP v1's name
    """Register a distributed class for the module class that this decorates.

        @smp.tp_register(smp.nn.DistributedTransformer, init_hook=lambda config: ((), config.to_dict()))
        class Encoder(nn.Module):
            ...

    `init_hook` gets the arguments of the class's `__init__` and returns `(args, kwargs)` for that of `dist_module`;
    `forward_hook` does the same for `forward`, and `return_hook` translates the result. Marked instances are replaced
    by instances of `dist_module` in `smp.DistributedModel`. Source: SMP v1, `smp.tp_register`.
    """

    def __init__(
        self,
        dist_module: type[nn.Module],
        init_hook: Callable[..., Arguments] | None = None,
        forward_hook: Callable[..., Arguments] | None = None,
        return_hook: Callable[[Any], Any] | None = None,
    ) -> None:
        self._registration = Registration(dist_module, init_hook, forward_hook, return_hook)

    def __call__(self, module_cls: Class) -> Class:
        original = module_cls.__init__

        def recording_init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            # A subclass with an `__init__` of its own has other arguments; its class is not registered.
            if type(self) is module_cls:
                self.__dict__[_ARGUMENTS_ATTRIBUTE] = (args, kwargs)

        module_cls.__init__ = recording_init  # type: ignore[method-assign]
        _registered[module_cls] = self._registration
        return module_cls


def tp_register_with_module(
    module_cls: type[nn.Module],
    dist_module: type[nn.Module],
    init_hook: Callable[..., Arguments] | None = None,
    forward_hook: Callable[..., Arguments] | None = None,
    return_hook: Callable[[Any], Any] | None = None,
) -> None:
    """Register a distributed class for an existing class, as `smp.tp_register` does; call it before creating models.

    smp.tp_register_with_module(Encoder, smp.nn.DistributedTransformer, init_hook=translate)
    """
    tp_register(dist_module, init_hook, forward_hook, return_hook)(module_cls)


def mark_of(module: nn.Module) -> Mark:
    """Return the user's mark of a module."""
    mark: Mark = module.__dict__.get(MARK_ATTRIBUTE, Mark(enabled=False))
    return mark


class Replacement(nn.Module):
    """An instance of a distributed class in the place of a module, with hooks that translate arguments and results."""

    def __init__(self, dist_module: nn.Module, registration: Registration) -> None:
        super().__init__()
        self.dist_module = dist_module
        self._hooks = (registration.forward_hook, registration.return_hook)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        forward_hook, return_hook = self._hooks
        if forward_hook is not None:
            args, translated = forward_hook(*args, **kwargs)
            kwargs = dict(translated)
        result = self.dist_module(*args, **kwargs)
        return result if return_hook is None else return_hook(result)


def replace_registered(module: nn.Module) -> nn.Module:
    """Put distributed modules in the place of marked instances of registered classes, the outermost ones.

    Returns the module, or what takes its place.
    """
    registration = _registered.get(type(module))
    mark = mark_of(module)
    if registration is None or not mark.enabled:
        for name, child in list(module.named_children()):
            if (replacement := replace_registered(child)) is not child:
                setattr(module, name, replacement)
        return module
    args, kwargs = module.__dict__[_ARGUMENTS_ATTRIBUTE]
    if registration.init_hook is not None:
        args, kwargs = registration.init_hook(*args, **kwargs)
    try:
        made = registration.dist_module(*args, **{**kwargs, **mark.config})
    except TypeError as error:
        raise ParallelError(
            f"{registration.dist_module.__name__} does not take the arguments of {type(module).__name__}: {error}."
            " Translate them with the init_hook of smp.tp_register"
        ) from error
    return Replacement(made, registration)
