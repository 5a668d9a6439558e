"""Parameters that several modules of a model share, such as a head that is tied to the embedding, under accelerate.

accelerate 1.15 shards the layers of a model one by one, the embedding and the head apart, and the rest with the root.
`fully_shard` needs all modules that share a parameter in one of these groups, and no module in two of them. So layers
that share a parameter are left to the root, and embeddings too where another module holds or shares them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.sharding.units import shares_parameters

# How a model of transformers names the modules that accelerate shards apart.
_EMBEDDINGS = ("get_input_embeddings", "get_output_embeddings")
# What torch puts into the names of modules that it wraps, and not into those of a state dict.
_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")


def policy_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return accelerate's `fsdp2_prepare_auto_wrap_policy`, whose policy passes over layers that share a parameter."""

    def policy(plugin: Any, model: nn.Module) -> Any:
        is_unit = original(plugin, model)
        if is_unit is None:
            return None
        named = [(name, module) for name, module in model.named_modules() if name and is_unit(module)]
        alone = {module for name, module in named if not shares_parameters(model, name)}
        return lambda module: module in alone

    return policy


def preparation_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return accelerate's `fsdp2_prepare_model`, which leaves embeddings that do not stand alone to the root."""

    def prepare(accelerator: Any, model: nn.Module) -> Any:
        from accelerate.utils import fsdp_utils

        plugin, before = accelerator.state.fsdp_plugin, shared_names(model)
        plugin.set_auto_wrap_policy(model)
        is_unit = fsdp_utils.fsdp2_prepare_auto_wrap_policy(plugin, model)
        units = [
            module for module in model.modules() if module is not model and is_unit is not None and is_unit(module)
        ]
        with nullcontext() if _stand_alone(model, units) else _without_embeddings(model):
            prepared = original(accelerator, model)
        if (after := shared_names(prepared)) != before:
            names = next(names for names in before if names not in after)
            raise ParallelError(
                f"accelerate has untied {' and '.join(names)} while it sharded the model, so they would train apart:"
                " leave FSDP_CPU_RAM_EFFICIENT_LOADING out of the job's environment"
            )
        return prepared

    return prepare


def states_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of accelerate that gathers a model's state, in which a shared parameter is one tensor.

    Its model is the first argument that is a module. A file of such a state has the parameter once.
    """

    def gather(*args: Any, **options: Any) -> Any:
        state = original(*args, **options)
        model = next(value for value in (*args, *options.values()) if isinstance(value, nn.Module))
        # safetensors refuses shared tensors, and only models of transformers and PEFT leave the second name out.
        for first, *others in shared_names(model) if hasattr(model, "save_pretrained") else ():
            state.update({name: state[first] for name in others if name in state and first in state})
        return state

    return gather


def shared_names(model: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several, as in a state dict.

    >>> layers = nn.ModuleDict({"first": nn.Linear(2, 2, bias=False), "second": nn.Linear(2, 2, bias=False)})
    >>> layers["second"].weight = layers["first"].weight
    >>> shared_names(layers)
    [['first.weight', 'second.weight']]
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        names.setdefault(id(parameter), []).append(name)
    return [of_one for of_one in names.values() if len(of_one) > 1]


def _stand_alone(model: Any, units: Collection[nn.Module]) -> bool:
    """Say whether accelerate can shard embeddings, head and last norm apart from the units and the rest of a model.

    No unit may hold one of them, and no other module may have one of their parameters.
    """
    from accelerate.utils import fsdp_utils

    try:
        parts = [getattr(model, name, lambda: None)() for name in _EMBEDDINGS]
    except NotImplementedError:  # transformers 5, of models without embeddings
        return False
    parts.append(fsdp_utils._find_final_norm(model))
    inside = {module for part in parts if part is not None for module in part.modules()}
    theirs = {id(parameter) for module in inside for parameter in module.parameters()}
    others = (module for module in model.modules() if module not in inside)
    return all(unit in inside or inside.isdisjoint(unit.modules()) for unit in units) and not any(
        id(parameter) in theirs for module in others for parameter in module.parameters(recurse=False)
    )


@contextmanager
def _without_embeddings(model: nn.Module) -> Iterator[None]:
    """Have a model name no embeddings."""
    vars(model).update(dict.fromkeys(_EMBEDDINGS, lambda: None))
    try:
        yield
    finally:
        for name in _EMBEDDINGS:
            del vars(model)[name]
