"""`smp.nn.DistributedTransformer*`: layers, stacks of them, and a language model made of a stack."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  torch's own abbreviation

from herringbone_parallel.torch.model_parallel.tensor.layers import (
    AttentionOptions,
    DistributedAttentionLayer,
    DistributedModule,
    DistributedTransformerOutputLayer,
    OutputOptions,
)

Inputs = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class LayerOptions:
    """The arguments of `DistributedTransformerLayer`, in AWS's order. Numbers and sizes count those of all ranks."""

    num_attention_heads: int = 32
    attention_head_size: int = 32
    hidden_size: int = 1024
    intermediate_size: int = 4096
    attention_dropout_prob: float = 0.1
    hidden_dropout_prob: float = 0.1
    activation: str = "gelu"
    layernorm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    use_normal_initialization: bool = False
    causal_mask_size: int | None = None
    add_cross_attention: bool = False
    pre_layernorm: bool = False
    post_layernorm: bool = True
    fp32_residual_addition: bool = False


def _chosen(kind: type, options: LayerOptions) -> dict[str, Any]:
    """Return the options that a layer of this kind has, too."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in asdict(options).items() if name in names}


class DistributedTransformerLayer(DistributedModule):
    """A transformer layer: attention, cross-attention if wanted, and an output layer.

        layer = smp.nn.DistributedTransformerLayer(num_attention_heads=8, attention_head_size=64, hidden_size=512)
        hidden_states, attention_mask = layer((hidden_states, attention_mask))

    With `add_cross_attention` it takes and returns `(hidden_states, cross_states, attention_mask, cross_mask)`. Numbers
    and sizes count those of all ranks.
    """

    # Its layers have plans of their own; it is the region in which the batches are together.
    tensor_parallel_plan: ClassVar[dict[str, str]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        options = LayerOptions(*args, **kwargs)
        attention = _chosen(AttentionOptions, options)
        self.attention = DistributedAttentionLayer(**attention)
        self.cross_attention = (
            DistributedAttentionLayer(**attention, cross_attention=True) if options.add_cross_attention else None
        )
        self.output = DistributedTransformerOutputLayer(**_chosen(OutputOptions, options))

    def forward(self, inputs: Inputs) -> Inputs:
        if self.cross_attention is None:
            hidden, mask = inputs
            return self.output(self.attention((hidden, mask))), mask
        hidden, cross_states, mask, cross_mask = inputs
        attended = self.cross_attention((self.attention((hidden, mask)), cross_states, cross_mask))
        return self.output(attended), cross_states, mask, cross_mask


class DistributedTransformer(DistributedModule):
    """A sequence of `DistributedTransformerLayer`, whose arguments and inputs it has; `num_layers` is their number.

    With both `pre_layernorm` and `post_layernorm`, its layers normalise their inputs, and the last output is
    normalised.
    """

    def __init__(self, num_layers: int = 12, **layer: Any) -> None:
        super().__init__()
        both = layer.get("pre_layernorm", False) and layer.get("post_layernorm", True)
        if both:
            layer = {**layer, "post_layernorm": False}
        self.seq_layers = nn.Sequential(*(DistributedTransformerLayer(**layer) for _ in range(num_layers)))
        size, epsilon = layer.get("hidden_size", 1024), layer.get("layernorm_epsilon", 1e-5)
        self.layernorm = nn.LayerNorm(size, epsilon) if both else None

    def forward(self, inputs: Inputs) -> Inputs:
        outputs: Inputs = self.seq_layers(inputs)
        return outputs if self.layernorm is None else (self.layernorm(outputs[0]), *outputs[1:])


class DistributedTransformerLMHead(DistributedModule):
    """A language model: embeddings, a `DistributedTransformer`, and a head whose weight is that of the word embeddings.

        model = smp.nn.DistributedTransformerLMHead(num_layers=12, vocab_size=50304, causal_mask_size=1024)
        logits = model((input_ids, None, None, None, None))

    The argument is `(input_ids, attention_mask, token_type_ids, position_ids, labels)`, and with `add_cross_attention`
    `(input_ids, attention_mask, token_type_ids, position_ids, cross_states, cross_mask, labels)`. In `attention_mask`,
    [N, S], 1 is a masked position. With labels it returns `(loss, logits)`, the loss being that of the next token.
    Without `add_lm_head` it returns the hidden states.
    """

    def __init__(
        self,
        num_layers: int = 12,
        vocab_size: int = 30522,
        num_positions: int = 1024,
        num_token_types: int = 0,
        add_lm_head: bool = True,
        **layer: Any,
    ) -> None:
        super().__init__()
        size, std = layer.get("hidden_size", 1024), layer.get("initializer_range", 0.02)
        self.word_embedding = _WordEmbedding(vocab_size, size)
        self.position_embedding = nn.Embedding(num_positions, size)
        self.token_type_embedding = nn.Embedding(num_token_types, size) if num_token_types else None
        self.add_cross_attention = layer.get("add_cross_attention", False)
        self.dropout = nn.Dropout(layer.get("hidden_dropout_prob", 0.1))
        for embedding in (self.word_embedding, self.position_embedding, self.token_type_embedding):
            if embedding is not None:
                nn.init.normal_(embedding.weight, std=std)
        self.transformer = DistributedTransformer(num_layers, **layer)
        self.lm_head = _Head(size, vocab_size, bias=False) if add_lm_head else None
        if self.lm_head is not None:
            self.lm_head.weight = self.word_embedding.weight

    def forward(self, inputs: Inputs) -> Any:
        ids, mask, types, positions = inputs[:4]
        labels = inputs[-1]
        assert ids is not None
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        hidden = self.word_embedding(ids) + self.position_embedding(positions)
        if types is not None and self.token_type_embedding is not None:
            hidden = hidden + self.token_type_embedding(types)
        hidden = self.dropout(hidden)
        added = None if mask is None else _added(mask, hidden.dtype)
        if self.add_cross_attention:
            cross_mask = inputs[5]
            others = None if cross_mask is None else _added(cross_mask, hidden.dtype)
            hidden = self.transformer((hidden, inputs[4], added, others))[0]
        else:
            hidden = self.transformer((hidden, added))[0]
        if self.lm_head is None:
            return hidden
        logits = self.lm_head(hidden)
        if labels is None:
            return logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss, logits


class _WordEmbedding(nn.Embedding, DistributedModule):
    tensor_parallel_plan: ClassVar[dict[str, str]] = {"": "embedding_rowwise"}


class _Head(nn.Linear, DistributedModule):
    tensor_parallel_plan: ClassVar[dict[str, str]] = {"": "colwise_gather_output"}


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask of ones at masked positions, [N, S], as numbers that are added to scores, [N, 1, 1, S]."""
    return mask[:, None, None, :].to(dtype) * torch.finfo(dtype).min
