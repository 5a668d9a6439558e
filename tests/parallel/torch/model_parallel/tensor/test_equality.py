"""Tensor parallelism of SMP v1: losses and weights are those of one process that has all batches."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.parallel.torch.ranks import Ranks

VOCABULARY, WIDTH, TOKENS, BATCH, STEPS = 12, 8, 5, 4, 5


class Encoder(nn.Module):
    """torch's own layers, with masks, between an embedding and its tied head."""

    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=batch_first) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.batch_first = batch_first

    def forward(self, ids: torch.Tensor) -> Any:
        padding = ids == 0
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], dtype=self.head.weight.dtype)
        x = self.norm(self.words(ids))
        x = x if self.batch_first else x.transpose(0, 1)
        for layer in self.layers:
            x = layer(x, src_mask=mask, src_key_padding_mask=padding.to(mask.dtype) * -1e9)
        return self.head(x if self.batch_first else x.transpose(0, 1))


class Layers(nn.Module):
    """Linear layers and embeddings, which are shared one by one; one of them cannot be."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 7), nn.Linear(7, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.layers(self.words(ids)))


class Distributed(nn.Module):
    """Layers of `smp.nn`."""

    def __init__(self) -> None:
        super().__init__()
        import herringbone_parallel.torch.model_parallel.api as smp

        self.model = smp.nn.DistributedTransformerLMHead(
            num_layers=2, num_attention_heads=2, attention_head_size=4, hidden_size=WIDTH, intermediate_size=16,
            vocab_size=VOCABULARY, num_positions=TOKENS, attention_dropout_prob=0.0, hidden_dropout_prob=0.0,
            causal_mask_size=TOKENS, pre_layernorm=True,
        )  # fmt: skip
        self.out = smp.nn.DistributedLinear(VOCABULARY, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.out(self.model((ids, (ids == 0).long(), None, None, None)))


class Tied(nn.Module):
    """An embedding that another one and a head are tied to, and a weight that other code reads."""

    _tp_plan: ClassVar[dict[str, str]] = {"words": "embedding_rowwise", "up": "colwise_gather_output"}

    def __init__(self) -> None:
        super().__init__()
        self.words, self.others = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.others.weight = self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.up(self.words(ids) + self.others(ids.flip(1)))
        return self.head(x) + F.linear(x, self.up.weight).sum(-1, keepdim=True)


MODELS = {
    "Tied": Tied,
    "Encoder": Encoder,
    "Encoder of other layout": lambda: Encoder(batch_first=False),
    "Layers": Layers,
    "Distributed": Distributed,
}


class Trained(NamedTuple):
    """The losses, the norms of the gradients, the whole weights and optimizer states; the share that a rank keeps."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, torch.Tensor]
    states: dict[str, Any]
    kept: int


def build(name: str) -> nn.Module:
    torch.manual_seed(3)
    return MODELS[name]().double()


def batch_of(index: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(index)
    return torch.randint(0, VOCABULARY, (BATCH, TOKENS), generator=generator)


def loss_of(output: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), ids.flatten())


def train(name: str) -> Trained:
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_parallel.torch.model_parallel import state

    module = build(name)
    smp.set_tensor_parallelism(module)
    for index, layer in enumerate(module.layers if hasattr(module, "layers") else []):
        smp.set_partition(layer, min(index, smp.pp_size() - 1))
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))

    @smp.step
    def train_step(ids: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model(ids), ids)
        model.backward(loss)
        return loss

    prescaled = state.get().settings.prescaled_batch
    index = smp.rdp_rank() if prescaled else smp.dp_rank()
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = train_step(batch_of(10 * step + index)).reduce_mean()
        losses.append(float(sum(smp.allgather(loss.item(), smp.DP_GROUP))) / smp.dp_size())
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(model.parameters()), 0.5)))
        optimizer.step()
    kept = sum(parameter.numel() for parameter in model.local_parameters())
    return Trained(losses, norms, model.state_dict(), optimizer.state_dict()["state"], kept)


def train_alone(name: str, batches: int) -> Trained:
    module = build(name)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        ids = torch.cat([batch_of(10 * step + index) for index in range(batches)])
        loss = loss_of(module(ids), ids)
        loss.backward()
        losses.append(loss.item())
        norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), 0.5)))
        optimizer.step()
    kept = sum(parameter.numel() for parameter in module.parameters())
    return Trained(losses, norms, module.state_dict(), optimizer.state_dict()["state"], kept)


TWO = {"partitions": 1, "tensor_parallel_degree": 2, "ddp": True}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor 2": TWO,
    "tensor 2, the same batch": {**TWO, "prescaled_batch": True},
    "tensor 2, 2 microbatches": {**TWO, "microbatches": 2},
    "tensor 2, 2 replicas": {**TWO, "replicas": 2},
    "tensor 2, shard 2": {
        **TWO,
        "replicas": 2,
        "sharded_data_parallel_degree": 2,
        "sdp_param_persistence_threshold": 0,
        "sdp_gradient_clipping": 0,
    },
    "tensor 2, 2 partitions": {
        **TWO,
        "partitions": 2,
        "microbatches": 4,
        "auto_partition": False,
        "default_partition": 0,
    },
}  # fmt: skip
CASES = [
    ("Encoder", "tensor 2"),
    ("Encoder", "tensor 2, the same batch"),
    ("Encoder", "tensor 2, 2 microbatches"),
    ("Encoder", "tensor 2, 2 replicas"),
    ("Encoder", "tensor 2, shard 2"),
    ("Encoder", "tensor 2, 2 partitions"),
    ("Encoder of other layout", "tensor 2"),
    ("Tied", "tensor 2"),
    ("Tied", "tensor 2, the same batch"),
    ("Layers", "tensor 2"),
    ("Layers", "tensor 2, 2 partitions"),
    ("Distributed", "tensor 2"),
    ("Distributed", "tensor 2, the same batch"),
    ("Distributed", "tensor 2, 2 replicas"),
]


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_training_equals_one_process(ranks: Ranks, name: str, layout: str) -> None:
    parameters = dict(LAYOUTS[layout])
    batches = parameters.get("replicas", 1) * (1 if parameters.get("prescaled_batch") else 2)
    alone = train_alone(name, batches)
    for trained in ranks.run(train, parameters, name):
        torch.testing.assert_close(trained.losses, alone.losses, rtol=0, atol=1e-10)
        torch.testing.assert_close(trained.norms, alone.norms, rtol=0, atol=1e-10)
        assert trained.weights.keys() == alone.weights.keys()
        torch.testing.assert_close(trained.weights, alone.weights, rtol=0, atol=1e-10)
        torch.testing.assert_close(trained.states, alone.states, rtol=0, atol=1e-10)
        assert trained.kept < 0.75 * alone.kept
