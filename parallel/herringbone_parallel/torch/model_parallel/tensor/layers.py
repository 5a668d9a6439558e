"""`smp.nn.Distributed*`: layers that the ranks of a tensor group share.

They are ordinary modules, whole until `smp.DistributedModel` shares them. Each class has the plan for it.
Source: SMP v1, "PyTorch API for Tensor Parallelism", whose appendix gives the computations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  torch's own abbreviation

from herringbone_contract.errors import ParallelError


class DistributedModule(nn.Module):
    """The base of SMP v1's distributed modules."""


@dataclass(frozen=True)
class AttentionOptions:
    """The arguments of `DistributedAttentionLayer`, in AWS's order. Numbers and sizes count those of all ranks."""

    num_attention_heads: int = 32
    attention_head_size: int = 32
    hidden_size: int = 1024
    attention_dropout_prob: float = 0.1
    hidden_dropout_prob: float = 0.1
    layernorm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    use_normal_initialization: bool = False
    cross_attention: bool = False
    causal_mask_size: int | None = None
    pre_layernorm: bool = False
    post_layernorm: bool = True


@dataclass(frozen=True)
class OutputOptions:
    """The arguments of `DistributedTransformerOutputLayer`, in AWS's order."""

    hidden_size: int = 1024
    intermediate_size: int = 4096
    hidden_dropout_prob: float = 0.1
    activation: str = "gelu"
    layernorm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    use_normal_initialization: bool = False
    pre_layernorm: bool = False
    post_layernorm: bool = True
    fp32_residual_addition: bool = False


class DistributedLinear(nn.Linear, DistributedModule):
    """`nn.Linear` whose outputs are divided between the ranks; `in_features` and `out_features` count all of them."""

    tensor_parallel_plan: ClassVar[dict[str, str]] = {"": "colwise_gather_output"}


class DistributedEmbedding(nn.Embedding, DistributedModule):
    """`nn.Embedding` whose embedding dimension is divided between the ranks."""

    tensor_parallel_plan: ClassVar[dict[str, str]] = {"": "colwise"}

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *args: Any,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        # AWS's switches for a part of the exchange: the layer decides that itself.
        for name in ("_skip_allgather", "_skip_scatter_and_merge"):
            if kwargs.pop(name, False):
                raise ParallelError(f"smp.nn.DistributedEmbedding({name}=True) is not available; leave it out")
        super().__init__(num_embeddings, embedding_dim, padding_idx, *args, **kwargs)
        if kwargs.get("_weight") is None:
            nn.init.normal_(self.weight, std=initializer_range)
            self._fill_padding_idx_with_zero()


class DistributedAttentionLayer(DistributedModule):
    """Self- or cross-attention, a linear layer and dropout; with `post_layernorm` the residual and its normalisation.

        attention = smp.nn.DistributedAttentionLayer(num_attention_heads=8, attention_head_size=64, hidden_size=512)
        output = attention((hidden_states, attention_mask))

    `hidden_states` is [N, S, hidden_size]; `attention_mask` is added to the scores, [N, 1, 1, S]. With
    `cross_attention` the argument is `(hidden_states, cross_states, attention_mask)`.
    """

    tensor_parallel_plan: ClassVar[dict[str, str]] = {
        "query": "colwise",
        "key": "colwise",
        "value": "colwise",
        "dense": "rowwise",
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        options = AttentionOptions(*args, **kwargs)
        width = options.num_attention_heads * options.attention_head_size
        self.num_attention_heads = options.num_attention_heads
        self.attention_head_size = options.attention_head_size
        self.cross_attention = options.cross_attention
        self.causal = options.causal_mask_size is not None and not options.cross_attention
        self.query = nn.Linear(options.hidden_size, width)
        self.key = nn.Linear(options.hidden_size, width)
        self.value = nn.Linear(options.hidden_size, width)
        self.dense = nn.Linear(width, options.hidden_size)
        self.attention_dropout_prob = options.attention_dropout_prob
        self.dropout = nn.Dropout(options.hidden_dropout_prob)
        self.pre_layernorm, self.layernorm = _normalisations(options)
        initialise(self, normal=options.use_normal_initialization, std=options.initializer_range)

    def forward(self, inputs: tuple[torch.Tensor | None, ...]) -> torch.Tensor:
        hidden, mask = inputs[0], inputs[-1]
        assert hidden is not None
        states = hidden if self.pre_layernorm is None else self.pre_layernorm(hidden)
        others = inputs[1] if self.cross_attention else states
        assert others is not None
        # [N, heads, S, size]; the number of heads is this rank's.
        q, k, v = (
            layer(x).view(*x.shape[:-1], -1, self.attention_head_size).transpose(1, 2)
            for layer, x in ((self.query, states), (self.key, others), (self.value, others))
        )
        if self.causal:
            # Only positions up to its own are seen by a position.
            length = q.shape[2]
            later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
            causal = torch.zeros(length, length, dtype=q.dtype, device=q.device).masked_fill(later, float("-inf"))
            mask = causal if mask is None else mask + causal
        context = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if mask is None else mask.to(q.dtype),
            dropout_p=self.attention_dropout_prob if self.training else 0.0,
        )
        # The residual is added in any case: a next layer with `pre_layernorm` normalises the sum itself.
        output: torch.Tensor = self.dropout(self.dense(context.transpose(1, 2).flatten(2))) + hidden
        return output if self.layernorm is None else self.layernorm(output)


class DistributedTransformerOutputLayer(DistributedModule):
    """Two linear layers with an activation between them, dropout and normalisation, after an attention layer.

    `fp32_residual_addition` adds the residual in float32.
    """

    tensor_parallel_plan: ClassVar[dict[str, str]] = {"dense1": "colwise", "dense2": "rowwise"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        options = OutputOptions(*args, **kwargs)
        activations = {"gelu": F.gelu, "relu": F.relu, "gelu_new": _gelu_new}
        if options.activation not in activations:
            raise ParallelError(
                f"activation={options.activation!r} of a distributed layer: it is one of {sorted(activations)}"
            )
        self._activation: Any = activations[options.activation]
        self.dense1 = nn.Linear(options.hidden_size, options.intermediate_size)
        self.dense2 = nn.Linear(options.intermediate_size, options.hidden_size)
        self.dropout = nn.Dropout(options.hidden_dropout_prob)
        self.fp32_residual_addition = options.fp32_residual_addition
        self.pre_layernorm, self.layernorm = _normalisations(options)
        initialise(self, normal=options.use_normal_initialization, std=options.initializer_range)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        states = inputs if self.pre_layernorm is None else self.pre_layernorm(inputs)
        output = self.dropout(self.dense2(self._activation(self.dense1(states))))
        total = (output.float() + inputs.float()).to(output.dtype) if self.fp32_residual_addition else output + inputs
        result: torch.Tensor = total if self.layernorm is None else self.layernorm(total)
        return result


def _gelu_new(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _normalisations(options: AttentionOptions | OutputOptions) -> tuple[nn.LayerNorm | None, nn.LayerNorm | None]:
    if not options.pre_layernorm and not options.post_layernorm:
        raise ParallelError("a distributed layer needs pre_layernorm, post_layernorm or both; set one to True")

    def layernorm() -> nn.LayerNorm:
        return nn.LayerNorm(options.hidden_size, options.layernorm_epsilon)

    return layernorm() if options.pre_layernorm else None, layernorm() if options.post_layernorm else None


def initialise(module: nn.Module, *, normal: bool, std: float) -> None:
    """Give linear layers normal weights, or leave torch's own."""
    for inner in module.modules():
        if normal and isinstance(inner, nn.Linear):
            nn.init.normal_(inner.weight, std=std)
            nn.init.zeros_(inner.bias)
