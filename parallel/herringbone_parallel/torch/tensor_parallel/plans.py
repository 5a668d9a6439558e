"""The tensor-parallel plan of a model: which style each of its modules gets.

A plan is a dict from patterns of module names to styles. The first of these that exists is used:

    [1] the plan that the user passes
    [2] the model's own: `_tp_plan`, which models of Hugging Face make from their configuration's `base_model_tp_plan`
    [3] ours for families of Hugging Face that have none (`families`)
    [4] ours for torch's own layers: `nn.MultiheadAttention` and what is made of it

Styles have the names of torch and Hugging Face, whose documentation explains them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.tensor_parallel.families import family_plan


class Kind(Enum):
    """The way in which the ranks share a module."""

    COLWISE = "colwise"
    COLWISE_GATHER = "colwise_gather_output"
    PACKED_COLWISE = "packed_colwise"
    ROWWISE = "rowwise"
    ROWWISE_TAKE = "rowwise_split_input"
    EMBEDDING_ROWWISE = "embedding_rowwise"
    EMBEDDING_HEADS = "embedding_heads"
    ATTENTION = "attention"
    REPLICATED = "replicated"
    REPLICATED_SUM = "replicated_with_grad_allreduce"


# Other names of the same styles: torch's, and those of earlier releases of Hugging Face.
_SYNONYMS = {
    "colwise_rep": Kind.COLWISE_GATHER,
    "rowwise_rep": Kind.ROWWISE_TAKE,
    "rowwise_output": Kind.ROWWISE,
    "replicate": Kind.REPLICATED,
}

_REFUSED = {
    "sequence_parallel": "activations outside of shared layers are whole on every rank",
    "gather": "it gathers a module's output whoever made it; use colwise_gather_output on the layer that makes it",
    "packed_rowwise": "it is for experts, whose parallelism is not available",
    "mla_kv_a_proj": "latent attention is not available",
}


@dataclass(frozen=True)
class Style:
    """A kind, and for packed parameters the number of blocks in them, as in "packed_colwise:3".

    `optional` styles of the vocabulary are left out where the vocabulary does not divide.
    """

    kind: Kind
    blocks: int = 1
    optional: bool = False

    @classmethod
    def parse(cls, text: str, where: str, *, optional: bool = False) -> Style:
        """Return the style that a plan names.

        >>> Style.parse("packed_colwise:3", "attn.c_attn").blocks
        3

        Raises `ParallelError` with the pattern `where` for a style that is unknown, and for one that is not available.
        """
        name, _, number = text.partition(":")
        if name in _REFUSED:
            raise ParallelError(f"the tensor-parallel style {name!r} of {where!r} is not available: {_REFUSED[name]}")
        if any(word in name for word in ("moe", "expert", "grouped_gemm", "ep_", "local_")):
            raise ParallelError(
                f"the tensor-parallel style {name!r} of {where!r} is not available: it is for experts. Give a plan"
                " without it, under which every rank has all experts"
            )
        try:
            kind = _SYNONYMS[name] if name in _SYNONYMS else Kind(name)
        except ValueError:
            known = ", ".join(kind.value for kind in Kind)
            raise ParallelError(
                f"{text!r}, the tensor-parallel style of {where!r}, is no style; there are {known}"
            ) from None
        if number and (kind is not Kind.PACKED_COLWISE or not number.isdecimal() or int(number) < 1):
            raise ParallelError(f"{text!r}, the tensor-parallel style of {where!r}: only packed_colwise takes a number")
        blocks = int(number) if number else 2
        return cls(kind, blocks if kind is Kind.PACKED_COLWISE else 1, optional)


def styles(model: nn.Module, plan: Mapping[str, str] | None = None) -> dict[str, Style]:
    """Return the style of each module that the ranks share, by dotted name.

        styles(model, {"layers.*.fc1": "colwise", "layers.*.fc2": "rowwise"})

    Raises `ParallelError` for a model without a plan, and for a pattern of the user's that no module matches.
    """
    names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    if plan is not None:
        return _match(names, plan)
    own = getattr(model, "_tp_plan", None) or _of_configuration(model)
    if own:
        return _match(names, own, own=True)
    family = family_plan(model)
    if family:
        return _match(names, family, own=True)
    found = dict(_of_torch_layers(model))
    if found:
        return found
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    example = {re.sub(r"\d+", "*", name): "colwise" for name in linear[:1]} | {"...": "rowwise"}
    raise ParallelError(
        f"there is no tensor-parallel plan for {type(model).__name__}: it has no plan of its own (`_tp_plan`), is of no"
        " family that this release knows and has no nn.MultiheadAttention. Write one as a dict from names of modules to"
        f" styles, such as plan={example}, where a colwise layer feeds a rowwise one; or leave tensor_parallel_degree"
        " at 1"
    )


def _match(names: list[str], plan: Mapping[str, str], *, own: bool = False) -> dict[str, Style]:
    result: dict[str, Style] = {}
    for pattern, text in plan.items():
        style = Style.parse(text, pattern, optional=own)
        matches = [name for name in names if fnmatchcase(name, pattern)]
        # A family's plan names layers that some of its models lack, so only the user's patterns must match.
        if not matches and not own:
            raise ParallelError(
                f"no module of the model is named {pattern!r}, which the tensor-parallel plan has as {text!r}; its"
                f" modules are {names[:8]}, ..."
            )
        for name in matches:
            # The first pattern counts, as in a list of rules.
            result.setdefault(name, style)
    return result


def _of_configuration(model: nn.Module) -> dict[str, str]:
    """Return the plan in the configuration of a model of Hugging Face, whose names start at the base model."""
    plan = getattr(getattr(model, "config", None), "base_model_tp_plan", None) or {}
    prefix = getattr(model, "base_model_prefix", "")
    start = f"{prefix}." if prefix and hasattr(model, prefix) else ""
    return {start + pattern: style for pattern, style in plan.items()}


def _of_torch_layers(model: nn.Module) -> Iterator[tuple[str, Style]]:
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            yield path, Style(Kind.ATTENTION)
        if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
            start = f"{path}." if path else ""
            yield f"{start}linear1", Style(Kind.COLWISE)
            yield f"{start}linear2", Style(Kind.ROWWISE)
