"""Models of the equality matrix in plain torch, and their batches: the kinds of models that users shard.

Each takes the whole batch as keywords and returns its loss, as models of transformers do with `labels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

SAMPLES, POSITIONS, WIDTH, HEADS, VOCABULARY, CLASSES = 4, 12, 16, 4, 23, 5
Batch = dict[str, torch.Tensor]


class Model(NamedTuple):
    """One model: how to build it and its batch, the reasons why layouts refuse it, and its plan for tensor ranks."""

    module: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    # Axis of the mesh -> words of the refusal.
    refused: dict[str, str] = {}  # noqa: RUF012  nobody changes it
    plan: dict[str, str] | None = None

    def build(self, dtype: torch.dtype) -> tuple[nn.Module, Batch]:
        """Return the module and its batch, with the same numbers at every call."""
        torch.manual_seed(3)
        module = self.module().to(dtype)
        batch = self.batch()
        return module, {name: t.to(dtype) if t.is_floating_point() else t for name, t in batch.items()}


def tokens(length: int = POSITIONS) -> torch.Tensor:
    """Return tokens [SAMPLES, length]."""
    return torch.randint(1, VOCABULARY, (SAMPLES, length), generator=torch.Generator().manual_seed(length))


def text() -> Batch:
    """Return tokens and labels [SAMPLES, POSITIONS]; the first labels are ignored, equally many in each sample."""
    labels = tokens().roll(1, dims=0)
    labels[:, :3] = -100
    return {"input_ids": tokens(), "labels": labels}


def padded_text() -> Batch:
    """Return text of which every sample's last positions are padding."""
    batch = text()
    mask = torch.ones(SAMPLES, POSITIONS, dtype=torch.int64)
    mask[:, -3:] = 0
    batch["labels"][:, -3:] = -100
    return {**batch, "attention_mask": mask}


def translation() -> Batch:
    """Return the tokens of a source [SAMPLES, 8], and the target as labels [SAMPLES, POSITIONS]."""
    return {"input_ids": tokens(8), "labels": tokens()}


def images() -> Batch:
    """Return images [SAMPLES, 3, 16, 16] and their classes [SAMPLES]."""
    generator = torch.Generator().manual_seed(13)
    return {
        "pixel_values": torch.randn(SAMPLES, 3, 16, 16, generator=generator),
        "labels": torch.randint(0, CLASSES, (SAMPLES,), generator=generator),
    }


def _layer(kind: type[nn.Module] = nn.TransformerEncoderLayer) -> nn.Module:
    return kind(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)


def _causal(length: int, like: torch.Tensor) -> torch.Tensor:
    return nn.Transformer.generate_square_subsequent_mask(length, device=like.device, dtype=like.dtype)


class Text(nn.Module):
    """Embeddings of tokens and positions, torch's encoder layers, and a head over the vocabulary."""

    def __init__(self, *, causal: bool, tied: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.layers = nn.TransformerEncoder(_layer(), 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=not tied)
        if tied:
            self.head.weight = self.tokens.weight

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        hidden = self.embed(input_ids)
        mask = _causal(input_ids.shape[1], hidden) if self.causal else None
        padding = None if attention_mask is None else (1.0 - attention_mask.to(hidden.dtype)) * -1e9
        hidden = self.layers(hidden, mask, padding, is_causal=self.causal and padding is None)
        logits = self.head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Buffers(Text):
    """A text model with positions in a buffer that is not saved, and a buffer that each forward pass changes."""

    def __init__(self) -> None:
        super().__init__(causal=True)
        angles = torch.arange(POSITIONS)[:, None] / torch.arange(1, WIDTH + 1)[None]
        self.register_buffer("angles", angles.sin(), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH))

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return super().embed(input_ids) * self.scale + self.angles[: input_ids.shape[1]]


class Translation(nn.Module):
    """An encoder and a decoder of torch's layers over one vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.TransformerEncoder(_layer(), 2, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(_layer(nn.TransformerDecoderLayer), 2)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        memory = self.encoder(self.tokens(input_ids))
        target = self.tokens(F.pad(labels, (1, -1)))
        hidden = self.decoder(target, memory, _causal(target.shape[1], target), tgt_is_causal=True)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


class GroupedAttention(nn.Module):
    """Causal attention with rotary positions, in which two heads share one head of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        cosine, sine = position_embeddings

        def heads(states: torch.Tensor) -> torch.Tensor:
            return states.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)

        def rotate(states: torch.Tensor) -> torch.Tensor:
            first, second = states.chunk(2, dim=-1)
            return states * cosine + torch.cat([-second, first], dim=-1) * sine

        query, key = rotate(heads(self.query(hidden))), rotate(heads(self.key(hidden)))
        value = heads(self.value(hidden))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.output(attended.transpose(1, 2).flatten(2))


class GroupedLayer(nn.Module):
    """A layer of today's decoders: RMS norms, grouped attention, a gated feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = GroupedAttention()
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        hidden = hidden + self.attention(self.first_norm(hidden), position_embeddings)
        normed = self.second_norm(hidden)
        return hidden + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Grouped(nn.Module):
    """A decoder of grouped layers, whose rotary angles the model makes once."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(GroupedLayer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(input_ids)
        width = WIDTH // HEADS
        frequencies = 100.0 ** (-torch.arange(0, width, 2, device=hidden.device) / width)
        angles = torch.arange(input_ids.shape[1], device=hidden.device)[:, None] * frequencies.repeat(2)
        angles = angles.to(hidden.dtype)[None]
        for layer in self.layers:
            hidden = layer(hidden, (angles.cos(), angles.sin()))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


class Residual(nn.Module):
    """Two convolutions with batch norm around a shortcut."""

    def __init__(self, channels: int, wider: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, wider, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(channels, wider, 1, stride=2, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(wider), nn.BatchNorm2d(wider)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.first_norm(self.first(hidden)))
        return F.relu(self.second_norm(self.second(inner)) + self.shortcut(hidden))


class ResNet(nn.Module):
    """Residual convolutions with batch norm, a mean over the picture, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(Residual(3, 8), Residual(8, 16))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.stages(pixel_values).mean(dim=(2, 3))), labels)


class ViT(nn.Module):
    """A vision transformer: 16 patches and a class token, so 17 positions, which no degree divides."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, 17, WIDTH) / 10)
        self.layers = nn.TransformerEncoder(_layer(), 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        patches = self.patches(pixel_values).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.class_token.expand(len(patches), -1, -1), patches], dim=1) + self.positions
        return F.cross_entropy(self.head(self.layers(hidden)[:, 0]), labels)


GROUPED_PLAN = {
    **{f"layers.*.{name}": "colwise" for name in ("attention.query", "attention.key", "attention.value", "gate", "up")},
    **{f"layers.*.{name}": "rowwise" for name in ("attention.output", "down")},
}
MODELS = {
    "encoder": Model(lambda: Text(causal=False), padded_text),
    "decoder": Model(lambda: Text(causal=True), text),
    "encoder-decoder": Model(Translation, translation),
    "grouped": Model(Grouped, text, plan=GROUPED_PLAN),
    "resnet": Model(
        ResNet,
        images,
        refused={"context": "no stack of layers with attention", "tensor": "leave tensor_parallel_degree at 1"},
    ),
    "vit": Model(ViT, images),
    "tied": Model(lambda: Text(causal=True, tied=True), text),
    "buffers": Model(Buffers, padded_text),
}
