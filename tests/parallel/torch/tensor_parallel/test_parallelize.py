"""`parallelize` on two ranks: training equals one process, and what cannot be shared is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.parallel.torch.ranks import RankFailedError, Ranks

VOCABULARY, WIDTH, TOKENS, STEPS = 12, 8, 5, 5
TWO = {"partitions": 1, "replicas": 2, "ddp": True}


class Attention(nn.Module):
    """Packed query, key and value, whose heads come from the shapes."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, WIDTH // heads
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Language(nn.Module):
    """A tied embedding, packed attention, every other style of linear layers, a parameter and a buffer of its own."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("places", torch.arange(TOKENS), persistent=False)
        self.attention = Attention(heads)
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.gate, self.down = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = (self.words(ids) + self.positions(self.places)) * self.scale
        x = x + self.dropout(self.attention(x))
        return self.head(self.norm(x + self.down(self.up(x) * torch.sigmoid(self.gate(x)))))


class Outside(nn.Module):
    """Code that reads the weights of its layers itself: a position's row, and a head tied by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        x = self.down(torch.tanh(self.up(x)))
        return F.linear(x, self.words.weight) + self.up.weight.mean()


OUTSIDE = {"words": "embedding_rowwise", "up": "colwise", "down": "rowwise"}
LANGUAGE = {
    "words": "embedding_rowwise", "positions": "colwise", "head": "colwise_gather_output", "up": "colwise",
    "attention.qkv": "packed_colwise:3", "attention.out": "rowwise", "gate": "colwise", "down": "rowwise",
}  # fmt: skip
# Every rank computes with all heads, and with the whole inner features.
GATHERED = {"attention.qkv": "colwise_rep", "attention.out": "rowwise_rep", "up": "colwise_gather_output"}


class Transformer(nn.Module):
    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.inner = nn.Transformer(WIDTH, 2, 1, 1, 16, 0.0, batch_first=batch_first)
        self.attention = nn.MultiheadAttention(WIDTH, 2, kdim=WIDTH, vdim=WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.batch_first = batch_first

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        words = self.words(ids)
        x = words if self.batch_first else words.transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(TOKENS, dtype=x.dtype)
        x = self.inner(x, x.flip(-1), tgt_mask=mask, memory_key_padding_mask=(ids == 0).to(x.dtype) * -1e9)
        x = x if self.batch_first else x.transpose(0, 1)
        y, weights = self.attention(x, words, words)
        one_sequence, by_head = self.attention(x[0], words[0], words[0], average_attn_weights=False)
        return self.head(x + y) + weights.mean() + by_head.std() + one_sequence.mean()


MODELS: dict[str, Any] = {
    "Language": (Language, LANGUAGE),
    "Language, gathered": (Language, GATHERED),
    "Outside": (Outside, OUTSIDE),
    "Transformer": (Transformer, None),
    "Transformer of other layout": (lambda: Transformer(batch_first=False), None),
}


def batch_of(step: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (4, TOKENS), generator=torch.Generator().manual_seed(step))


def train(module: nn.Module) -> tuple[list[float], list[float]]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    losses, norms = [], []
    for step in range(STEPS):
        ids = batch_of(step)
        loss = F.cross_entropy(module(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        norm: Any = nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        norms.append(float(whole(norm)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


def train_shared(name: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_parallel.torch.tensor_parallel.parallelize import parallelize

    make, plan = MODELS[name]
    # The first rank's values and random numbers count.
    torch.manual_seed(3 + smp.rank())
    module = make().double()
    parallelize(module, init_device_mesh("cpu", (2,)), plan)
    losses, norms = train(module)
    module.eval()
    with torch.no_grad():
        # torch's fast path for inference must not be taken.
        evaluated = module(batch_of(9))
        # As in one process, on every rank.
        for outside in (-1, VOCABULARY):
            with pytest.raises(IndexError, match="index out of range in self"):
                module(batch_of(9).index_fill(1, torch.tensor(1), outside))
    return losses, norms, evaluated, {key: whole(value) for key, value in module.state_dict().items()}


def whole(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_training_equals_one_process(ranks: Ranks, name: str) -> None:
    torch.manual_seed(3)
    alone = MODELS[name][0]().double()
    losses, norms = train(alone)
    alone.eval()
    with torch.no_grad():
        evaluated = alone(batch_of(9))
    for shared in ranks.run(train_shared, dict(TWO), name):
        torch.testing.assert_close(shared, (losses, norms, evaluated, dict(alone.state_dict())), rtol=0, atol=1e-10)


def share(make: Any, plan: dict[str, str] | None) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    from herringbone_parallel.torch.tensor_parallel.parallelize import parallelize

    parallelize(make(), init_device_mesh("cpu", (2,)), plan)


def one_head() -> nn.Module:
    return Language(heads=1)


def odd() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 4))


def three_heads() -> nn.Module:
    return nn.MultiheadAttention(9, 3)


def with_key_bias() -> nn.Module:
    return nn.MultiheadAttention(8, 2, add_bias_kv=True)


def norm_limit() -> nn.Module:
    return nn.Sequential(nn.Embedding(4, 4, max_norm=1.0))


@pytest.mark.parametrize(
    ("make", "plan", "message"),
    [
        (one_head, LANGUAGE, r"'attention' has 1 heads \(num_heads\), which tensor_parallel_degree 2 does not divide"),
        (odd, {"0": "colwise", "1": "rowwise"}, r"does not divide 3, dimension 0 of 0\.weight"),
        (three_heads, None, r"has 3 heads"),
        (with_key_bias, None, r"has add_bias_kv or add_zero_attn"),
        (norm_limit, {"0": "rowwise"}, r"the embedding '0' has max_norm"),
        (
            Language,
            {**LANGUAGE, "words": "colwise"},
            r"'words' and 'head' have one weight, .* dimension 1 .* and 0",
        ),
        (Language, {"norm": "colwise"}, r"'norm' is a LayerNorm, which cannot have the tensor-parallel style colwise"),
        (Language, {"attention": "colwise"}, r"'attention', a Attention, has no parameters of its own"),
    ],
)
def test_what_the_ranks_cannot_share_is_refused_by_name(
    ranks: Ranks, make: Any, plan: dict[str, str] | None, message: str
) -> None:
    with pytest.raises(RankFailedError, match=message):
        ranks.run(share, dict(TWO), make, plan)
