"""Numbers of heads: they must divide by the ranks, and attributes that count them count those of one rank.

Modules of Hugging Face compute shapes from such attributes, or leave a dimension to `view(..., -1, head_dim)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.tensor_parallel.layers import is_conv1d
from herringbone_parallel.torch.tensor_parallel.operations import Peers
from herringbone_parallel.torch.tensor_parallel.plans import Kind, Style

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_key_value_heads", "num_kv_heads")
_WIDTHS = ("all_head_size", "inner_dim", "split_size", "embed_dim")
_HEAD_SIZES = ("head_dim", "attention_head_size", "key_value_proj_dim")
_LOCAL = (Kind.COLWISE, Kind.PACKED_COLWISE)


def check_heads(model: nn.Module, styles: Mapping[str, Style], degree: int) -> None:
    """Raise `ParallelError` for an attention whose heads the ranks cannot share evenly."""
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and styles[path].kind is Kind.ATTENTION:
            _require(path, "num_heads", module.num_heads, degree)
        children = _shared_children(path, module, styles)
        if not children:
            continue
        for name in _numbers(module, _HEADS):
            _require(path, name, getattr(module, name), degree)
        for name in _numbers(module, _HEAD_SIZES):
            for child_name, child in children.items():
                size: Any = child.nf if is_conv1d(child) else getattr(child, "out_features", 0)
                heads, rest = divmod(int(size), int(getattr(module, name)))
                if size and not rest:
                    _require(f"{path}.{child_name}", f"of {name} {getattr(module, name)}", heads, degree)


def localise(model: nn.Module, styles: Mapping[str, Style], peers: Peers) -> None:
    """Divide the attributes from which modules compute the shapes of what this rank has."""
    for path, module in model.named_modules():
        style = styles.get(path, Style(Kind.REPLICATED))
        if is_conv1d(module) and style.kind in (*_LOCAL, Kind.COLWISE_GATHER):
            conv: Any = module
            conv.nf = conv.nf // peers.degree
        if isinstance(module, nn.Embedding) and style.kind is Kind.EMBEDDING_ROWWISE and module.padding_idx is not None:
            size = module.num_embeddings // peers.degree
            local = module.padding_idx - peers.index * size
            module.padding_idx = local if 0 <= local < size else None
        if isinstance(module, nn.TransformerEncoderLayer):
            # torch's fast path for inference reads the parameters by itself, and knows nothing of the other ranks.
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
        if not isinstance(module, nn.MultiheadAttention) and _shared_children(path, module, styles):
            heads = _numbers(module, _HEADS)
            # An MLP may have an `inner_dim`, which is not about heads.
            for name in (*heads, *(_numbers(module, _WIDTHS) if heads else ())):
                setattr(module, name, getattr(module, name) // peers.degree)


def _shared_children(path: str, module: nn.Module, styles: Mapping[str, Style]) -> dict[str, nn.Module]:
    """Return the children whose output is a part of the heads."""
    start = f"{path}." if path else ""
    return {
        name: child
        for name, child in module.named_children()
        if styles.get(start + name, Style(Kind.REPLICATED)).kind in _LOCAL
    }


def _numbers(module: nn.Module, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if type(module.__dict__.get(name)) is int]


def _require(path: str, name: str, heads: int, degree: int) -> None:
    if heads % degree:
        raise ParallelError(
            f"{path!r} has {heads} heads ({name}), which tensor_parallel_degree {degree} does not divide: choose a"
            " degree that divides them, or a plan that leaves this attention out"
        )
