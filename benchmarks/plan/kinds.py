"""Models of other kinds than those of `cases`: Python loops, small kernels, recomputation, routing, sampling.

They were chosen before a prediction of any of them was seen, and have one size. The last two came later, to see whether
predictions hold for kinds that nobody had tried.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WORDS = 2000


class GruAttention(nn.Module):
    """Encode with a GRU, and decode word by word in a Python loop that attends to the encoder's states."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.cell = nn.GRUCell(2 * width, width)
        self.score = nn.Linear(width, width)
        self.head = nn.Linear(2 * width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        words = self.embed(tokens)
        states, last = self.encoder(words)
        keys, hidden, outputs = self.score(states), last[0], []
        for moment in range(tokens.shape[1]):
            weights = torch.softmax((keys * hidden[:, None]).sum(-1), dim=-1)
            context = (weights[..., None] * states).sum(1)
            hidden = self.cell(torch.cat([words[:, moment], context], dim=-1), hidden)
            outputs.append(torch.cat([hidden, context], dim=-1))
        return self.head(torch.stack(outputs, dim=1))


class Depthwise(nn.Sequential):
    """Blocks of pointwise and depthwise convolutions."""

    def __init__(self, width: int = 48) -> None:
        blocks = [self._block(width << stage, width << min(stage + 1, 2), 1 + stage % 2) for stage in range(3)]
        start = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.Hardswish()]
        super().__init__(*start, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 1000))

    @staticmethod
    def _block(inputs: int, outputs: int, stride: int) -> nn.Module:
        middle = 4 * inputs
        return nn.Sequential(
            nn.Conv2d(inputs, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.Hardswish(),
            nn.Conv2d(middle, middle, 5, stride, 2, groups=middle, bias=False), nn.BatchNorm2d(middle), nn.Hardswish(),
            nn.Conv2d(middle, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip


class Recomputed(nn.Module):
    """Layers of a transformer that run again in the backward."""

    def __init__(self, width: int = 192, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 6, 4 * width, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.embed(tokens)
        for layer in self.layers:
            states = checkpoint(layer, states, use_reentrant=False)
        return self.head(states)


class _Experts(nn.Module):
    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(experts)
        )

    def forward(self, states: Tensor) -> Tensor:
        flat = states.flatten(0, -2)
        weights, chosen = torch.softmax(self.router(flat), dim=-1).topk(2)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            result = result.index_add(0, rows, expert(flat[rows]) * weights[rows, place, None])
        return states + result.view_as(states)


class Mixture(nn.Module):
    """Attention, and layers in which each word goes to two of eight experts."""

    def __init__(self, width: int = 160, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(layers))
        self.experts = nn.ModuleList(_Experts(width, 8) for _ in range(layers))
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.embed(tokens)
        for attention, experts in zip(self.attention, self.experts, strict=True):
            states = experts(states + attention(states, states, states, need_weights=False)[0])
        return self.head(states)


class EncoderDecoder(nn.Module):
    """torch's transformer: an encoder, and a decoder with a causal mask."""

    def __init__(self, width: int = 160) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, width), nn.Embedding(WORDS, width)
        self.body = nn.Transformer(width, 4, 3, 3, 4 * width, batch_first=True)
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.body(self.source(tokens), self.target(tokens), tgt_mask=mask, tgt_is_causal=True))


class Sampled(nn.Module):
    """A small variational autoencoder of images."""

    def __init__(self, width: int = 24, hidden: int = 64) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.mean, self.spread = nn.LazyLinear(hidden), nn.LazyLinear(hidden)
        self.up = nn.Sequential(
            nn.Linear(hidden, 2 * width * 256), nn.Unflatten(1, (2 * width, 16, 16)), nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )  # fmt: skip
        with torch.no_grad():
            self(torch.zeros(2, 3, 64, 64))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states = self.down(images)
        mean, spread = self.mean(states), self.spread(states)
        return self.up(mean + torch.randn_like(mean) * torch.exp(0.5 * spread)), mean, spread


class Bags(nn.Module):
    """Bags of embeddings, their products, and a perceptron, as recommenders have them."""

    def __init__(self, tables: int = 8, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(20_000, width, mode="sum") for _ in range(tables))
        pairs = tables * (tables - 1) // 2
        self.top = nn.Sequential(nn.Linear(tables * width + pairs, 256), nn.ReLU(), nn.Linear(256, WORDS))

    def forward(self, tokens: Tensor) -> Tensor:
        bags = torch.stack([table(tokens + number) for number, table in enumerate(self.tables)], dim=1)
        above = torch.triu_indices(len(self.tables), len(self.tables), 1)
        products = (bags @ bags.transpose(1, 2))[:, above[0], above[1]]
        return self.top(torch.cat([bags.flatten(1), products], dim=1))


class _Scan(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into, self.gate, self.out = (nn.Linear(width, width) for _ in range(3))
        self.decay = nn.Parameter(torch.rand(width))

    def forward(self, states: Tensor) -> Tensor:
        inputs, decay = self.into(self.norm(states)), torch.sigmoid(self.decay)
        memory, outputs = torch.zeros_like(inputs[:, 0]), []
        for moment in range(inputs.shape[1]):
            memory = decay * memory + (1 - decay) * inputs[:, moment]
            outputs.append(memory)
        return states + self.out(torch.stack(outputs, dim=1) * functional.silu(self.gate(states)))


class Scanned(nn.Module):
    """Linear recurrences, in Python loops over the words."""

    def __init__(self, width: int = 192, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.Sequential(*(_Scan(width) for _ in range(layers)))
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens)))


class UNet(nn.Module):
    """A net of convolutions whose way up takes what its way down has kept."""

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.start = self._block(3, width)
        self.down = nn.ModuleList(self._block(inputs, 2 * inputs) for inputs in widths[:-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * inputs, inputs, 2, 2) for inputs in reversed(widths[:-1]))
        self.join = nn.ModuleList(self._block(2 * inputs, inputs) for inputs in reversed(widths[:-1]))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, 1000))

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        kept = [self.start(images)]
        for down in self.down:
            kept.append(down(functional.max_pool2d(kept[-1], 2)))
        states = kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            states = join(torch.cat([up(states), kept.pop()], dim=1))
        return self.head(states)


class _StateSpace(nn.Module):
    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.decay = nn.Parameter(torch.rand(width, states) + 0.1)
        self.turn = nn.Parameter(torch.rand(width, states) * 3)
        self.into = nn.Parameter(torch.randn(width, states) / states)

    def forward(self, states: Tensor) -> Tensor:
        length = states.shape[1]
        moments = torch.arange(length, device=states.device)
        poles = torch.complex(-functional.softplus(self.decay), self.turn)
        kernel = (self.into[..., None] * torch.exp(poles[..., None] * moments)).sum(1).real
        inputs = torch.fft.rfft(self.norm(states).transpose(1, 2), n=2 * length)
        convolved = torch.fft.irfft(inputs * torch.fft.rfft(kernel, n=2 * length), n=2 * length)[..., :length]
        return states + functional.glu(self.out(functional.gelu(convolved.transpose(1, 2))), dim=-1)


class StateSpace(nn.Module):
    """Diagonal state spaces, as long convolutions by Fourier transforms."""

    def __init__(self, width: int = 192, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.Sequential(*(_StateSpace(width, 16) for _ in range(layers)))
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens)))


def words(length: int) -> dict[str, Any]:
    tokens = torch.randint(0, WORDS, (length,))
    return {"input_ids": tokens, "labels": tokens}


def bag(length: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(0, 10_000, (length,)), "labels": torch.randint(0, WORDS, ())}


def of_bags(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return functional.cross_entropy(model(batch["input_ids"]), batch["labels"])


def of_samples(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    images, mean, spread = model(batch["pixel_values"])
    divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
    return functional.mse_loss(images, batch["pixel_values"]) + 1e-3 * divergence
